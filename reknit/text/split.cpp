// Splits text into the pieces within which BPE merges.
#include "reknit/text/split.h"

#include <pcre2.h>

#include <optional>

#include "reknit/base/error.h"
#include "reknit/text/gpt2_split.h"
#include "reknit/text/pattern.h"
#include "reknit/text/utf8.h"

namespace reknit {
namespace {

pcre2_code* code_of(const std::shared_ptr<void>& pointer) {
  return static_cast<pcre2_code*>(pointer.get());
}

pcre2_match_data* data_of(const std::shared_ptr<void>& pointer) {
  return static_cast<pcre2_match_data*>(pointer.get());
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR subject_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
}

std::string literal_pattern(std::string_view text) {
  std::string out;
  for (size_t position = 0; position < text.size();) {
    const Utf8Step step = utf8_step(text, position);
    if (step.code_point < 0x80 && !std::isalnum(static_cast<int>(step.code_point))) {
      out += '\\';
    }
    out += text.substr(position, step.size);
    position += step.size;
  }
  return to_pcre2(out);
}

}  // namespace

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  int error = 0;
  size_t offset = 0;
  code_ = std::shared_ptr<void>(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr),
      [](void* code) { pcre2_code_free(static_cast<pcre2_code*>(code)); });
  if (code_ == nullptr) {
    throw InputError(str("the tokenizer's split pattern is refused by PCRE2 at byte ", offset,
                         " of '", pattern, "': ", message_of(error)));
  }
  jit_ = pcre2_jit_compile(code_of(code_), PCRE2_JIT_COMPLETE) == 0;
}

Regex::Matches::Matches(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {
  data_ = std::shared_ptr<void>(pcre2_match_data_create(1, nullptr), [](void* data) {
    pcre2_match_data_free(static_cast<pcre2_match_data*>(data));
  });
  if (data_ == nullptr) {
    throw std::bad_alloc();
  }
}

bool Regex::Matches::search(size_t from, Span& span) {
  const pcre2_code* code = code_of(regex_.code_);
  pcre2_match_data* data = data_of(data_);
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (regex_.jit_) {
    found = pcre2_jit_match(code, subject_of(text_), text_.size(), from, 0, data, nullptr);
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code, subject_of(text_), text_.size(), from,
                        PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
  }
  if (found == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  if (found < 0) {
    throw InputError(str("the tokenizer's split pattern '", regex_.pattern_,
                         "' cannot be applied to a text of ", text_.size(),
                         " bytes: ", message_of(found)));
  }
  const size_t* offsets = pcre2_get_ovector_pointer(data);
  span = {offsets[0], offsets[1]};
  return true;
}

bool Regex::Matches::next(Span& span) {
  while (from_ <= text_.size() && search(from_, span)) {
    if (span.begin != span.end || span.end != last_end_) {
      from_ = last_end_ = span.end;
      return true;
    }
    from_ += from_ < text_.size() ? utf8_step(text_, from_).size : 1;
  }
  return false;
}

Splitter::Splitter(const std::vector<SplitSpec>& specs) {
  for (const SplitSpec& spec : specs) {
    Regex regex(spec.literal ? literal_pattern(spec.pattern) : to_pcre2(spec.pattern));
    const bool gpt2 = !spec.literal && !spec.removed && spec.pattern == kGpt2Pattern;
    stages_.push_back(
        {std::move(regex), !spec.removed || spec.invert, !spec.removed || !spec.invert, gpt2});
  }
}

// The pattern matches somewhere at every character, so that its matches are all there is.
void Splitter::split_gpt2(const Regex& regex, std::string_view text,
                          std::vector<std::string_view>& pieces) {
  std::optional<Regex::Matches> matches;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = gpt2_piece_end(text, begin);
    if (end == std::string_view::npos) {
      if (!matches) {
        matches.emplace(regex, text);
      }
      Regex::Span span;
      const bool found = matches->search(begin, span);
      REKNIT_INVARIANT(found && span.begin == begin && span.end > begin, "GPT-2's pattern at byte ",
                       begin);
      end = span.end;
    }
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

std::vector<std::string_view> Splitter::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) {
    pieces.push_back(text);
  }
  for (const Stage& stage : stages_) {
    std::vector<std::string_view> next;
    const auto keep = [&next](bool wanted, std::string_view piece) {
      if (wanted && !piece.empty()) {
        next.push_back(piece);
      }
    };
    for (const std::string_view piece : pieces) {
      if (stage.gpt2) {
        split_gpt2(stage.regex, piece, next);
        continue;
      }
      Regex::Matches matches(stage.regex, piece);
      size_t end = 0;
      for (Regex::Span span; matches.next(span); end = span.end) {
        keep(stage.keep_others, piece.substr(end, span.begin - end));
        keep(stage.keep_matches, piece.substr(span.begin, span.end - span.begin));
      }
      keep(stage.keep_others, piece.substr(end));
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace reknit
