#include "reknit/engine/generate.h"

#include "reknit/base/random.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace reknit {
namespace {

constexpr int64_t kChunk = 8;  // recorded steps between two looks at their tokens
constexpr uint64_t kSamplingPurpose = 0x53414d50;  // "SAMP"

thread_local int64_t forward_count = 0;

void check_requests(const ModelSpec& spec, const std::vector<GenerationRequest>& requests,
                    const SamplingSettings& settings) {
  for (const GenerationRequest& request : requests) {
    const auto length = static_cast<int64_t>(request.prompt.size());
    require<InputError>(length > 0, "prompt ", request.sequence, " has no tokens");
    if (spec.max_positions > 0 && length + settings.max_new_tokens > spec.max_positions) {
      throw UsageError(
          str("a prompt of ", length, " tokens and an answer of ", settings.max_new_tokens,
              " exceed the model's ", spec.max_positions, " positions"),
          "shorten the prompt or lower --max-new-tokens");
    }
    for (const int64_t token : request.prompt) {
      require<InputError>(token >= 0 && token < spec.vocab, "prompt ", request.sequence,
                          " holds token ", token, ", the vocabulary has ", spec.vocab);
    }
  }
}

// Answers of one batch of requests on this rank, and the agreement to stop.
class Batch {
 public:
  Batch(const Decoder& model, Store& store, KvCache& cache, const SamplingSettings& settings,
        std::span<const GenerationRequest> requests, std::span<Generation> answers,
        const TokenSink& sink, size_t first, DecodeSteps* steps)
      : model_(model),
        store_(store),
        cache_(cache),
        settings_(settings),
        requests_(requests),
        answers_(answers),
        sink_(sink),
        first_(first),
        steps_(steps) {}

  void run() {
    const at::Tensor logits = prefill();
    if (steps_ != nullptr && DecodeSteps::usable(store_) && !rows_.empty() &&
        settings_.max_new_tokens > 0) {
      run_recorded(logits);
    } else {
      run_eagerly(logits);
    }
  }

 private:
  // Tokens [begin, end) of every row, on their way to the host.
  struct Chunk {
    int64_t begin;
    int64_t end;
    at::Tensor tokens;
    at::Tensor logp;
    Event arrived;
  };

  void run_eagerly(at::Tensor logits) {
    int64_t step = 0;
    while (true) {
      const bool draw = settings_.max_new_tokens > 0 && !rows_.empty();
      at::Tensor tokens = draw ? this->draw(logits, step) : at::Tensor();
      ++step;
      if (step >= settings_.max_new_tokens || !any_rank_active()) {
        return;
      }
      logits = decode(tokens);
    }
  }

  // Queues a chunk of steps before it looks at the tokens of the chunk before.
  void run_recorded(const at::Tensor& logits) {
    DecodeStep& step = steps_->step(model_, store_, cache_, step_kind());
    step.begin(lengths_on_host_, stream_keys(), settings_.min_new_tokens);
    step.draw_first(logits);
    std::optional<Chunk> before;
    const int64_t most = settings_.max_new_tokens;
    for (int64_t begin = 0, end = 1; begin < most;
         begin = end, end = std::min(end + kChunk, most)) {
      for (int64_t drawn = std::max<int64_t>(begin, 1); drawn < end; ++drawn) {
        step.run();
        ++forward_count;
      }
      Chunk chunk = fetch(step, begin, end);
      if (before && !take(*before)) {
        return;
      }
      before = std::move(chunk);
    }
    take(*before);
  }

  StepKind step_kind() const {
    return {.rows = static_cast<int64_t>(rows_.size()),
            .most = settings_.max_new_tokens,
            .used = cache_.layer(0).used,
            .temperature = settings_.temperature,
            .top_k = settings_.top_k,
            .top_p = settings_.top_p,
            .vocab = settings_.vocab,
            .eos = settings_.eos};
  }

  static Chunk fetch(const DecodeStep& step, int64_t begin, int64_t end) {
    const auto to_host = [&](const at::Tensor& all) {
      const at::Tensor part = all.narrow(0, begin, end - begin);
      at::Tensor host =
          at::empty(part.sizes(), part.options().device(at::kCPU).pinned_memory(true));
      return host.copy_(part, /*non_blocking=*/true);
    };
    Chunk chunk{begin, end, to_host(step.tokens()), to_host(step.logp()), {}};
    chunk.arrived.record(this_rank().compute);
    return chunk;
  }

  // Adds the tokens of the rows that have not ended; false once all have.
  bool take(const Chunk& chunk) {
    chunk.arrived.synchronize();
    const auto count = static_cast<int64_t>(requests_.size());
    const int64_t* tokens = chunk.tokens.const_data_ptr<int64_t>();
    const float* logp = chunk.logp.const_data_ptr<float>();
    for (int64_t t = 0; t < chunk.end - chunk.begin; ++t) {
      std::erase_if(rows_, [&](int64_t row) {
        return !keep(row, tokens[t * count + row], logp[t * count + row]);
      });
    }
    return !rows_.empty();
  }

  // Collective only where a forward is: with every parameter here nobody waits.
  bool any_rank_active() const {
    if (store_.reads_are_local()) {
      return !rows_.empty();
    }
    const Stream& stream = this_rank().compute;
    at::Tensor active = at::full({1}, rows_.empty() ? 0 : 1,
                                 at::TensorOptions(at::kInt).device(this_rank().device));
    active = store_.comms().gather->all_reduce({active}, ReduceOp::kMax, stream).wait_on_host()[0];
    return active.item<int>() != 0;
  }

  at::Tensor prefill() {
    std::vector<int64_t> tokens;
    std::vector<int64_t> lengths;
    for (size_t row = 0; row < requests_.size(); ++row) {
      rows_.push_back(static_cast<int64_t>(row));
      tokens.insert(tokens.end(), requests_[row].prompt.begin(), requests_[row].prompt.end());
      lengths.push_back(static_cast<int64_t>(requests_[row].prompt.size()));
    }
    lengths_ = to_device(lengths, this_rank().device);
    lengths_on_host_ = lengths;
    const TokenBatch batch{to_device(tokens, this_rank().device), ops::Packing::of(lengths, this_rank().device)};
    cache_.reserve(std::max<int64_t>(1, static_cast<int64_t>(requests_.size())),
                   batch.packing.max_length + settings_.max_new_tokens);
    cache_.select(to_device(rows_, this_rank().device), at::zeros_like(lengths_));
    ++forward_count;
    return model_.prefill(store_, batch, cache_);
  }

  at::Tensor decode(const at::Tensor& tokens) {
    const at::Tensor input = tokens.defined() ? tokens : at::empty({0}, lengths_.options());
    cache_.select(to_device(rows_, this_rank().device), lengths_);
    ++forward_count;
    at::Tensor logits = model_.decode(store_, input, cache_);
    lengths_ = lengths_ + 1;
    return logits;
  }

  // Keys of the active rows' random streams.
  std::vector<int64_t> stream_keys() const {
    std::vector<int64_t> keys;
    for (const int64_t row : rows_) {
      keys.push_back(static_cast<int64_t>(
          mix(mix(settings_.seed, kSamplingPurpose), requests_[row].sequence)));
    }
    return keys;
  }

  // Draws a token for every active row, keeps it, and drops the rows that have ended.
  // Returns the tokens of the rows that go on.
  at::Tensor draw(const at::Tensor& logits, int64_t step) {
    const auto count = static_cast<int64_t>(rows_.size());
    const auto options = lengths_.options();
    const ops::Sampled sampled = ops::sample(
        logits, {settings_.temperature, settings_.top_k, settings_.top_p, settings_.vocab},
        to_device(stream_keys()), at::full({count}, step, options),
        at::full({count}, settings_.min_new_tokens, options), settings_.eos);
    const at::Tensor tokens = sampled.tokens.cpu();
    const at::Tensor logp = sampled.logp.cpu();
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < count; ++i) {
      if (keep(rows_[i], tokens.const_data_ptr<int64_t>()[i], logp.const_data_ptr<float>()[i])) {
        kept.push_back(i);
      }
    }
    if (static_cast<int64_t>(kept.size()) == count) {
      return sampled.tokens;
    }
    const at::Tensor index = to_device(kept, this_rank().device);
    lengths_ = lengths_.index_select(0, index);
    std::vector<int64_t> rows;
    for (const int64_t i : kept) {
      rows.push_back(rows_[i]);
    }
    rows_ = std::move(rows);
    return sampled.tokens.index_select(0, index);
  }

  // Adds a token to an answer; false if that ends it.
  bool keep(int64_t row, int64_t token, float logp) {
    Generation& answer = answers_[row];
    if (std::isnan(logp)) {
      throw NumbersError(str("token ", answer.tokens.size(), " of the answer to prompt ",
                             requests_[row].sequence, " has the log-probability NaN"),
                         "the weights hold NaN or inf, or overflow in this precision: try fp32");
    }
    answer.tokens.push_back(token);
    answer.logprobs.push_back(logp);
    if (sink_) {
      sink_(first_ + static_cast<size_t>(row), token);
    }
    answer.ended = settings_.eos >= 0 && token == settings_.eos;
    return !answer.ended;
  }

  const Decoder& model_;
  Store& store_;
  KvCache& cache_;
  const SamplingSettings& settings_;
  std::span<const GenerationRequest> requests_;
  std::span<Generation> answers_;
  const TokenSink& sink_;
  size_t first_;
  DecodeSteps* steps_;
  std::vector<int64_t> rows_;             ///< active rows; row r uses cache slot r
  std::vector<int64_t> lengths_on_host_;  ///< of the prompts
  at::Tensor lengths_;                    ///< tokens in the cache of each active row
};

// Batches to run: the same on all ranks where forwards are collective.
int64_t agree_on_batches(Store& store, int64_t mine) {
  if (store.reads_are_local()) {
    return mine;
  }
  const Stream& stream = this_rank().compute;
  at::Tensor count = at::full({1}, mine, at::TensorOptions(at::kLong).device(this_rank().device));
  count = store.comms().gather->all_reduce({count}, ReduceOp::kMax, stream).wait_on_host()[0];
  return count.item<int64_t>();
}

}  // namespace

std::vector<Generation> generate(const Decoder& model, Store& store, KvCache& cache,
                                 const std::vector<GenerationRequest>& requests, int64_t batch,
                                 const SamplingSettings& settings, const TokenSink& sink,
                                 DecodeSteps* steps) {
  require<UsageError>(batch > 0, "a generation batch of ", batch, " sequences");
  check_requests(model.spec(), requests, settings);
  forward_count = 0;
  std::vector<Generation> answers(requests.size());
  const auto total = static_cast<int64_t>(requests.size());
  const int64_t batches = agree_on_batches(store, (total + batch - 1) / batch);
  for (int64_t b = 0; b < batches; ++b) {
    const auto begin = static_cast<size_t>(std::min(b * batch, total));
    const auto count = static_cast<size_t>(std::min(batch, total - static_cast<int64_t>(begin)));
    Batch(model, store, cache, settings, std::span(requests).subspan(begin, count),
          std::span(answers).subspan(begin, count), sink, begin, steps)
        .run();
  }
  store.finish_pass();
  return answers;
}

int64_t last_forward_count() {
  return forward_count;
}

}  // namespace reknit
