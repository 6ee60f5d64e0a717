#include "epp/server/certificate_watch.hpp"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

namespace handoff::epp {
namespace {

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

Key elliptic_key(const char* group) {
  return Key(EVP_EC_gen(group));
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

// A pair as an operator might bring it, with any kind of key. Ed25519 takes no digest.
PemCertificate self_signed(const Key& key, const EVP_MD* digest = EVP_sha256()) {
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key.get());
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1,
                             0);
  X509_set_issuer_name(certificate, name);
  EXPECT_NE(X509_sign(certificate, key.get(), digest), 0);
  BIO* certificate_text = BIO_new(BIO_s_mem());
  BIO* key_text = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(certificate_text, certificate);
  PEM_write_bio_PrivateKey(key_text, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(certificate);
  return {text_of(certificate_text), text_of(key_text)};
}

class CertificateWatchTest : public ::testing::Test {
 protected:
  CertificateWatchTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("certificate-watch-" + std::to_string(getpid()) + "-" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directory(folder_);
    first = make_self_signed_certificate();
    put(first);
  }
  ~CertificateWatchTest() override { std::filesystem::remove_all(folder_); }

  void put_certificate(const std::string& text) const { std::ofstream(certificate()) << text; }
  void put_key(const std::string& text) const { std::ofstream(key()) << text; }
  void put(const PemCertificate& pem) const {
    put_certificate(pem.certificate);
    put_key(pem.private_key);
  }
  std::string certificate() const { return folder_ / "tls.crt"; }
  std::string key() const { return folder_ / "tls.key"; }

  CertificateWatch& watch() {
    if (!watch_) watch_.emplace(certificate(), key(), std::chrono::milliseconds(0));
    return *watch_;
  }
  // As long as it takes for a change to count.
  std::optional<PemCertificate> after_looks() {
    watch().look();
    watch().look();
    return watch().newer_than(number);
  }

  PemCertificate first;
  std::uint64_t number = 0;

 private:
  std::filesystem::path folder_;
  std::optional<CertificateWatch> watch_;
};

TEST_F(CertificateWatchTest, ServesEachPairOnce) {
  EXPECT_EQ(watch().newer_than(number), first);
  EXPECT_EQ(watch().newer_than(number), std::nullopt);
  EXPECT_EQ(after_looks(), std::nullopt);
  const auto second = make_self_signed_certificate();
  put(second);
  EXPECT_EQ(after_looks(), second);
  EXPECT_EQ(after_looks(), std::nullopt);
}

TEST_F(CertificateWatchTest, KeepsThePairWhenTheNewOneCannotBeServed) {
  EXPECT_EQ(watch().newer_than(number), first);
  const auto second = make_self_signed_certificate();
  put_key(second.private_key);  // of another certificate
  EXPECT_EQ(after_looks(), std::nullopt);
  put_key("junk");
  EXPECT_EQ(after_looks(), std::nullopt);
  put_key("");
  EXPECT_EQ(after_looks(), std::nullopt);
  std::filesystem::remove(key());
  EXPECT_EQ(after_looks(), std::nullopt);
  std::filesystem::remove(certificate());
  EXPECT_EQ(after_looks(), std::nullopt);
  put(first);
  EXPECT_EQ(after_looks(), std::nullopt) << "it was served all the time";
  put(second);
  EXPECT_EQ(after_looks(), second);
}

TEST_F(CertificateWatchTest, RefusesWhatGrpcWouldCutOff) {
  const PemCertificate pair = make_self_signed_certificate();
  for (const bool of_key : {true, false}) {
    PemCertificate damaged = pair;
    std::string& text = of_key ? damaged.private_key : damaged.certificate;
    text.insert(0, std::string("\0\n", 2));
    const auto problem = find_problem(damaged);
    ASSERT_TRUE(problem.has_value());
    EXPECT_EQ(problem->is_of_key, of_key);
    EXPECT_EQ(problem->text, "holds a NUL byte");
  }
}

// OpenSSL reads each of these pairs; a handshake shows what can be served.
TEST_F(CertificateWatchTest, RefusesKindsOfKeysThatNoHandshakeSucceedsWith) {
  for (const char* group : {"P-256", "P-384", "P-521"}) {
    EXPECT_EQ(find_problem(self_signed(elliptic_key(group))), std::nullopt) << group;
  }
  EXPECT_EQ(find_problem(self_signed(Key(EVP_RSA_gen(2048)))), std::nullopt);
  EXPECT_EQ(find_problem(self_signed(Key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")), nullptr)),
            std::nullopt);
  for (const char* group : {"secp256k1", "brainpoolP256r1", "brainpoolP384r1", "brainpoolP512r1"}) {
    const auto problem = find_problem(self_signed(elliptic_key(group)));
    ASSERT_TRUE(problem.has_value()) << group;
    EXPECT_FALSE(problem->is_of_key);
    EXPECT_EQ(problem->text.find("can't be served: a TLS handshake with it fails: "), 0U) << problem->text;
  }
}

TEST_F(CertificateWatchTest, KeepsThePairWhenTheNewOnesKindOfKeyCannotBeServed) {
  EXPECT_EQ(watch().newer_than(number), first);
  put(self_signed(elliptic_key("secp256k1")));
  EXPECT_EQ(after_looks(), std::nullopt);
  const auto second = make_self_signed_certificate();
  put(second);
  EXPECT_EQ(after_looks(), second);
}

TEST_F(CertificateWatchTest, TakesNoHalfOfAChange) {
  EXPECT_EQ(watch().newer_than(number), first);
  const auto second = make_self_signed_certificate();
  put_certificate(second.certificate);
  watch().look();
  put_key(second.private_key);
  watch().look();
  EXPECT_EQ(watch().newer_than(number), std::nullopt) << "it may still be changing";
  watch().look();
  EXPECT_EQ(watch().newer_than(number), second);
}

TEST_F(CertificateWatchTest, RefusesToStartWithWhatCannotBeServed) {
  const auto said = [this]() -> std::string {
    try {
      watch();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing";
  };
  put_key("");
  EXPECT_EQ(said().find("DYN_EPP_TLS_KEY_PATH: " + key() +
                        " has no private key in PEM form that can be read without a passphrase"),
            0U);
  put_certificate("");
  EXPECT_EQ(said().find("DYN_EPP_TLS_CERT_PATH: " + certificate() + " has no certificate"), 0U);
  std::filesystem::remove(certificate());
  EXPECT_EQ(said().find("DYN_EPP_TLS_CERT_PATH: " + certificate()), 0U);
}

}  // namespace
}  // namespace handoff::epp
