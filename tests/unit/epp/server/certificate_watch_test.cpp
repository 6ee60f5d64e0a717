#include "epp/server/certificate_watch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace handoff::epp {
namespace {

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
