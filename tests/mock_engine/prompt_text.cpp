#include "prompt_text.hpp"

#include <string_view>

namespace handoff::mock {
namespace {

std::string dumped(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_content(const nlohmann::json& content, std::string& out) {
  if (content.is_string()) {
    out += content.get<std::string>();
    return;
  }
  if (!content.is_array()) {
    if (!content.is_null()) out += dumped(content);
    return;
  }
  for (const nlohmann::json& part : content) {
    // Text parts count as text; anything else (an image, a tool result) by its canonical JSON.
    if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      out += part["text"].get<std::string>();
    } else {
      out += dumped(part);
    }
  }
}

void append_tools(const nlohmann::json& body, std::string& out) {
  for (const char* name : {"tools", "chat_template_kwargs"}) {
    const auto found = body.find(name);
    if (found != body.end() && !found->is_null() && !found->empty())
      out += "<|" + std::string(name) + "|>" + dumped(*found) + "\n";
  }
}

std::string append_messages(const nlohmann::json& messages, std::string& out) {
  if (!messages.is_array()) return "Input should be a valid list";
  if (messages.empty()) return "List should have at least 1 item";
  for (const nlohmann::json& message : messages) {
    if (!message.is_object()) return "Input should be a valid dictionary";
    const auto role = message.find("role");
    const auto type = message.find("type");
    const bool message_item = type == message.end() || *type == "message";
    if (message_item && (role == message.end() || !role->is_string())) return "role: Field required";
    if (!message_item) {
      out += "<|item|>" + dumped(message) + "\n";
      continue;
    }
    out += "<|" + role->get<std::string>() + "|>";
    if (const auto content = message.find("content"); content != message.end()) append_content(*content, out);
    for (const char* name : {"tool_calls", "tool_call_id", "name"}) {
      if (const auto found = message.find(name); found != message.end() && !found->is_null())
        out += dumped(*found);
    }
    out += "\n";
  }
  return {};
}

}  // namespace

PromptText checked_chat_prompt_text(const nlohmann::json& body) {
  PromptText out;
  out.field = "messages";
  const auto messages = body.find("messages");
  if (messages == body.end()) {
    out.error = "Field required";
    return out;
  }
  append_tools(body, out.text);
  out.error = append_messages(*messages, out.text);
  out.text += "<|assistant|>";
  return out;
}

PromptText responses_prompt_text(const nlohmann::json& body) {
  PromptText out;
  out.field = "input";
  const auto input = body.find("input");
  if (input == body.end() || input->is_null()) {
    out.error = "Field required";
    return out;
  }
  append_tools(body, out.text);
  if (const auto text = body.find("instructions"); text != body.end() && text->is_string()) {
    out.text += "<|system|>" + text->get<std::string>() + "\n";
  }
  if (input->is_string()) {
    out.text += "<|user|>" + input->get<std::string>() + "\n";
  } else {
    out.error = append_messages(*input, out.text);
  }
  out.text += "<|assistant|>";
  return out;
}

PromptText messages_prompt_text(const nlohmann::json& body) {
  PromptText out;
  out.field = "messages";
  append_tools(body, out.text);
  if (const auto system = body.find("system"); system != body.end() && !system->is_null()) {
    out.text += "<|system|>";
    append_content(*system, out.text);
    out.text += "\n";
  }
  const auto messages = body.find("messages");
  if (messages == body.end()) {
    out.error = "Field required";
    return out;
  }
  out.error = append_messages(*messages, out.text);
  out.text += "<|assistant|>";
  return out;
}

}  // namespace handoff::mock
