#include "sidecar/request_target.hpp"

#include <gtest/gtest.h>

#include <string>

namespace handoff::sidecar {
namespace {

using namespace std::string_literals;

TEST(RequestTarget, GivesThePathForRoutingAndTheBytesToSend) {
  struct {
    const char* target;
    TargetForm form;
    const char* path;
    const char* sent;
    const char* why;
  } const rows[] = {
      {"/", TargetForm::origin, "/", "/", "root"},
      {"/v1/completions", TargetForm::origin, "/v1/completions", "/v1/completions", "plain"},
      {"/v1/completions?a=b?c", TargetForm::origin, "/v1/completions", "/v1/completions?a=b?c", "query"},
      {"/v1/completions#x?y", TargetForm::origin, "/v1/completions", "/v1/completions#x?y",
       "a stray fragment"},
      {"/v1/%63omp%6Cetions", TargetForm::origin, "/v1/completions", "/v1/%63omp%6Cetions",
       "encoded letters"},
      {"/%7e%2D%2e%5F%30", TargetForm::origin, "/~-._0", "/%7e%2D%2e%5F%30",
       "all other unreserved characters"},
      {"/v1%2Fcompletions", TargetForm::origin, "/v1%2Fcompletions", "/v1%2Fcompletions",
       "a slash is reserved"},
      {"/a%3Fb?c", TargetForm::origin, "/a%3Fb", "/a%3Fb?c", "a question mark is reserved"},
      {"/a?%61", TargetForm::origin, "/a", "/a?%61", "the query is nobody's path"},
      {"/%2561", TargetForm::origin, "/%2561", "/%2561", "decoded once only"},
      {"/%6%31", TargetForm::origin, "/%61", "/%6%31", "left to right, once"},
      {"/%", TargetForm::origin, "/%", "/%", "cut short"},
      {"/%6", TargetForm::origin, "/%6", "/%6", "cut short"},
      {"/%zz", TargetForm::origin, "/%zz", "/%zz", "not hexadecimal"},
      {"/%e9", TargetForm::origin, "/%e9", "/%e9", "not ASCII"},
      {"//v1/completions", TargetForm::origin, "//v1/completions", "//v1/completions",
       "double slash is not folded"},
      {"/v1/../v1/completions", TargetForm::origin, "/v1/../v1/completions", "/v1/../v1/completions",
       "dot segments are not folded"},
      {"/v1/completions/", TargetForm::origin, "/v1/completions/", "/v1/completions/", "final slash stays"},
      {"/http://a/b", TargetForm::origin, "/http://a/b", "/http://a/b", "a URL as a path"},
      {"http://host/a?b", TargetForm::absolute, "/a", "/a?b", "absolute form"},
      {"HTTPS://user@[::1]:80/%61?b", TargetForm::absolute, "/a", "/%61?b", "absolute form, all parts"},
      {"http://host", TargetForm::absolute, "/", "/", "absolute form without path"},
      {"http://host?a/b", TargetForm::absolute, "/", "/?a/b", "absolute form with only a query"},
      {"http://host?http://x/y", TargetForm::absolute, "/", "/?http://x/y", "a URL in the query"},
      {"http://host//a", TargetForm::absolute, "//a", "//a", "double slash after the authority"},
      {"*", TargetForm::asterisk, "*", "*", "OPTIONS *"},
      {"", TargetForm::invalid, "", "", "empty"},
      {"**", TargetForm::invalid, "", "", "no form"},
      {"v1/completions", TargetForm::invalid, "", "", "relative path"},
      {"host:80", TargetForm::invalid, "", "", "authority form, for CONNECT only"},
      {"http:/a", TargetForm::invalid, "", "", "no authority"},
      {"http:///a", TargetForm::invalid, "", "", "empty authority"},
      {"http://", TargetForm::invalid, "", "", "nothing after the scheme"},
      {"://host/a", TargetForm::invalid, "", "", "no scheme"},
      {"1http://host/a", TargetForm::invalid, "", "", "no scheme"},
      {"?a", TargetForm::invalid, "", "", "only a query"},
      {"/a b", TargetForm::invalid, "", "", "blank"},
      {"/a\tb", TargetForm::invalid, "", "", "tab"},
      {"/a\r\nb", TargetForm::invalid, "", "", "line break"},
      {"/a\x7f", TargetForm::invalid, "", "", "delete"},
      {"/\xc3\xa9", TargetForm::origin, "/\xc3\xa9", "/\xc3\xa9", "UTF-8 that the client didn't encode"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.target) + ": " + row.why);
    std::string buffer;
    EXPECT_EQ(target_form(row.target), row.form);
    EXPECT_EQ(normalised_path(row.target, buffer), row.path);
    EXPECT_EQ(origin_form(row.target, buffer), row.sent);
  }
  EXPECT_EQ(target_form("/a\0b"s), TargetForm::invalid);
}

TEST(RequestTarget, FullyDecodesAsEnginesDoBeforeTheyLookForAHandler) {
  struct {
    const char* target;
    const char* path;
    const char* why;
  } const rows[] = {
      {"/v1%2Fcompletions?%2F", "/v1/completions", "slash"},
      {"/v1%2fchat%2fcompletions", "/v1/chat/completions", "lower-case digits"},
      {"http://host/%67enerate", "/generate", "absolute form"},
      {"/a%3Fb", "/a?b", "a question mark that is part of the path"},
      {"/%2561", "/%61", "once only"},
      {"/%zz%", "/%zz%", "broken sequences stay"},
      {"/plain", "/plain", "nothing to decode"},
  };
  std::string buffer;
  for (const auto& row : rows) EXPECT_EQ(fully_decoded_path(row.target, buffer), row.path) << row.why;
}

TEST(RequestTarget, LeavesTheBufferAloneWhenNothingIsDecoded) {
  const std::string target = "/v1/completions?%61";
  std::string buffer = "untouched";
  EXPECT_EQ(normalised_path(target, buffer).data(), target.data());
  EXPECT_EQ(origin_form(target, buffer).data(), target.data());
  EXPECT_EQ(buffer, "untouched");
}

}  // namespace
}  // namespace handoff::sidecar
