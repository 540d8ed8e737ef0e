#include "reknit/data/build.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "reknit/base/error.h"
#include "reknit/data/json_texts.h"

namespace reknit {
namespace {

constexpr size_t kBatchBytes = 1 << 18;

// Rows of one input, one after the other.
struct Batch {
  std::shared_ptr<const JsonObjects> input;
  std::string text;
  std::vector<size_t> ends;
  std::vector<int64_t> numbers;
  int64_t bytes_read = 0;
};

struct Encoded {
  std::vector<int64_t> tokens;
  std::vector<size_t> ends;  ///< of the documents that have text
  int64_t left_out = 0;
  int64_t text_bytes = 0;
  int64_t bytes_read = 0;
};

// The rows of all inputs in batches. One thread at a time.
class Batches {
 public:
  explicit Batches(const std::vector<std::filesystem::path>& paths) : paths_(paths) {}

  /// False at the end.
  bool next(Batch& batch) {
    while (true) {
      if (input_ == nullptr) {
        if (opened_ == paths_.size()) {
          return false;
        }
        input_ = std::make_shared<JsonObjects>(paths_[opened_++]);
      }
      const bool more = fill(batch);
      batch.input = input_;
      batch.bytes_read = before_ + input_->bytes_read();
      if (!more) {
        before_ = batch.bytes_read;
        input_ = nullptr;
      }
      if (!batch.ends.empty()) {
        return true;
      }
    }
  }

 private:
  bool fill(Batch& batch) {
    while (batch.text.size() < kBatchBytes) {
      if (!input_->next(row_)) {
        return false;
      }
      batch.text += row_;
      batch.ends.push_back(batch.text.size());
      batch.numbers.push_back(input_->number());
    }
    return true;
  }

  const std::vector<std::filesystem::path>& paths_;
  size_t opened_ = 0;
  std::shared_ptr<JsonObjects> input_;
  std::string row_;
  int64_t before_ = 0;
};

// Each worker takes a batch, encodes it, and writes it when all before it are written.
class Build {
 public:
  Build(const BuildSpec& spec, const Tokenizer& tokenizer,
        const std::function<void(int64_t)>& progress)
      : spec_(spec),
        tokenizer_(tokenizer),
        progress_(progress),
        batches_(spec.inputs),
        writer_(spec.prefix, token_type_for(tokenizer.vocabulary_size())) {
    counts_.type = token_type_for(tokenizer.vocabulary_size());
    if (spec.append_end) {
      end_token_ = tokenizer.eos();
      if (!end_token_) {
        throw UsageError("the tokenizer names no end token to put after each document",
                         "name one in its tokenizer_config.json, or pass --no-append-eod");
      }
    }
  }

  BuildCounts run() {
    std::vector<std::thread> threads;
    try {
      for (int64_t i = 1; i < spec_.workers; ++i) {
        threads.emplace_back([this] { work(); });
      }
    } catch (const std::system_error& error) {
      const std::lock_guard lock(output_mutex_);
      failure_ = std::make_exception_ptr(
          CommError(str("only ", threads.size() + 1, " of ", spec_.workers,
                        " workers can be started: ", error.what()),
                    "pass a smaller --workers, or raise the limit on threads (ulimit -u)"));
      turn_.notify_all();
    }
    work();
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    if (counts_.documents == 0) {
      throw InputError(str("no text in ", spec_.inputs.front().string(),
                           spec_.inputs.size() > 1 ? " and the other inputs" : ""));
    }
    writer_.commit();
    return counts_;
  }

 private:
  void work() {
    while (true) {
      Batch batch;
      Encoded encoded;
      int64_t number = 0;
      std::exception_ptr failure;
      if (!take(batch, number, failure)) {
        return;
      }
      if (!failure) {
        try {
          encoded = encode(batch);
        } catch (...) {
          failure = std::current_exception();
        }
      }
      if (!finish(number, encoded, failure)) {
        return;
      }
    }
  }

  // The next batch and its number, or what its reading failed with. False at the end.
  bool take(Batch& batch, int64_t& number, std::exception_ptr& failure) {
    const std::lock_guard lock(input_mutex_);
    if (ended_) {
      return false;
    }
    number = taken_++;
    try {
      ended_ = !batches_.next(batch);
      return !ended_;
    } catch (...) {
      ended_ = true;
      failure = std::current_exception();
      return true;
    }
  }

  Encoded encode(const Batch& batch) const {
    Encoded encoded;
    encoded.bytes_read = batch.bytes_read;
    size_t begin = 0;
    for (size_t i = 0; i < batch.ends.size(); ++i) {
      const std::string_view row(batch.text.data() + begin, batch.ends[i] - begin);
      begin = batch.ends[i];
      const std::string text = batch.input->text_of(row, batch.numbers[i], spec_.key);
      if (text.empty()) {
        ++encoded.left_out;
        continue;
      }
      const std::vector<int64_t> tokens = tokenizer_.encode(text, false);
      encoded.tokens.insert(encoded.tokens.end(), tokens.begin(), tokens.end());
      if (end_token_) {
        encoded.tokens.push_back(*end_token_);
      }
      encoded.ends.push_back(encoded.tokens.size());
      encoded.text_bytes += static_cast<int64_t>(text.size());
    }
    return encoded;
  }

  // In the order of the numbers, so that the first wrong row is the one that is named.
  // False if the build has failed.
  bool finish(int64_t number, const Encoded& encoded, std::exception_ptr failure) {
    std::unique_lock lock(output_mutex_);
    turn_.wait(lock, [&] { return written_ == number || failure_; });
    if (failure_) {
      return false;
    }
    if (!failure) {
      try {
        write(encoded);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    failure_ = failure;
    ++written_;
    turn_.notify_all();
    return !failure_;
  }

  void write(const Encoded& encoded) {
    size_t begin = 0;
    for (const size_t end : encoded.ends) {
      writer_.add_sequence(std::span(encoded.tokens).subspan(begin, end - begin));
      writer_.end_document();
      begin = end;
    }
    counts_.documents += std::ssize(encoded.ends);
    counts_.left_out += encoded.left_out;
    counts_.tokens += std::ssize(encoded.tokens);
    counts_.text_bytes += encoded.text_bytes;
    progress_(encoded.bytes_read);
  }

  const BuildSpec& spec_;
  const Tokenizer& tokenizer_;
  const std::function<void(int64_t)>& progress_;
  std::optional<int64_t> end_token_;

  std::mutex input_mutex_;
  Batches batches_;
  int64_t taken_ = 0;
  bool ended_ = false;

  std::mutex output_mutex_;
  std::condition_variable turn_;
  TokenFileWriter writer_;
  BuildCounts counts_;
  int64_t written_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

BuildCounts build_token_file(const BuildSpec& spec, const Tokenizer& tokenizer,
                             const std::function<void(int64_t)>& progress) {
  return Build(spec, tokenizer, progress).run();
}

}  // namespace reknit
