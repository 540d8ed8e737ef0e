#include "apps/pretrain_report.h"

#include "reknit/base/format.h"

#include <algorithm>
#include <cmath>

namespace reknit {
namespace {

double tflops(const PretrainFacts& facts, int64_t sequences, double seconds) {
  return facts.sequence_flops * static_cast<double>(sequences) /
         (std::max(1e-9, seconds) * static_cast<double>(facts.ranks) * 1e12);
}

}  // namespace

nlohmann::ordered_json metrics_of(const PretrainRecord& r, const PretrainFacts& facts,
                                  int64_t skipped, std::optional<double> validation_loss) {
  const double seconds = std::max(1e-9, r.seconds);
  nlohmann::ordered_json line = {
      {"step", r.step},
      {"loss", r.lm.loss},
      {"lr", r.lm.update.lr},
      {"grad_norm", r.lm.update.grad_norm},
      {"loss_scale", r.lm.update.loss_scale},
      {"skipped", skipped},
      {"tokens", r.lm.tokens},
      {"tokens_per_s", static_cast<double>(r.global_batch * facts.seq_length) / seconds},
      {"tflops", tflops(facts, r.global_batch, seconds)},
      {"peak_bytes", facts.peak_bytes},
      {"seconds", r.seconds},
      {"global_batch", r.global_batch},
      {"samples", r.samples}};
  if (r.lm.update.weight_decay) {
    line["weight_decay"] = *r.lm.update.weight_decay;
  }
  if (validation_loss) {
    line["validation_loss"] = *validation_loss;
  }
  if (facts.timed) {
    line["forward_s"] = r.lm.times.forward_s;
    line["backward_s"] = r.lm.times.backward_s;
    line["reduce_s"] = r.lm.times.reduce_s;
    line["update_s"] = r.lm.times.update_s;
  }
  return line;
}

std::string validation_line(const std::string& where, double loss) {
  return format(" validation loss at %s | lm loss value: %.6E | lm loss PPL: %.6E |", where.c_str(),
                loss, std::exp(std::min(20.0, loss)));
}

void PretrainPrinter::add(const PretrainRecord& record) {
  last_ = record;
  ++steps_;
  loss_ += record.lm.loss;
  nan_steps_ += std::isnan(record.lm.loss) || std::isnan(record.lm.update.grad_norm) ? 1 : 0;
  seconds_ += record.seconds;
  sequences_ += record.global_batch;
  times_.forward_s += record.lm.times.forward_s;
  times_.backward_s += record.lm.times.backward_s;
  times_.reduce_s += record.lm.times.reduce_s;
  times_.update_s += record.lm.times.update_s;
}

std::string PretrainPrinter::lines(int64_t skipped) {
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_));
  const double seconds = std::max(1e-9, seconds_);
  const auto whole = [](int64_t value) { return static_cast<long long>(value); };
  std::string text = format(" iteration %8lld/%8lld |", whole(last_.step), whole(facts_.steps));
  text += format(" consumed samples: %12lld |", whole(last_.samples));
  text += format(" consumed tokens: %12lld |", whole(last_.samples * facts_.seq_length));
  text += format(" elapsed time per iteration (ms): %.1f |", 1e3 * seconds_ / steps);
  text += format(" learning rate: %.3E |", last_.lm.update.lr);
  text += format(" global batch size: %5lld |", whole(last_.global_batch));
  text += format(" lm loss: %.6E |", loss_ / steps);
  text += format(" loss scale: %.1f |", last_.lm.update.loss_scale);
  text += format(" grad norm: %.3f |", last_.lm.update.grad_norm);
  text += format(" actual seqlen: %5lld |", whole(facts_.seq_length));
  text += format(" number of skipped iterations: %3lld |", whole(skipped));
  text += format(" number of nan iterations: %3lld |", whole(nan_steps_));
  const auto sequences = static_cast<double>(sequences_);
  text += format(" samples per second: %.3f |", sequences / seconds);
  text += format(" tokens per gpu per second (tgs): %.3f |",
                 sequences * static_cast<double>(facts_.seq_length) /
                     (seconds * static_cast<double>(facts_.ranks)));
  text += format(" TFLOPs: %.2f |", tflops(facts_, sequences_, seconds));
  if (facts_.timed) {
    text += format(
        "\ntime (ms) | forward: %.2f | backward: %.2f | backward-allreduce: %.2f | "
        "step: %.2f",
        1e3 * times_.forward_s / steps, 1e3 * times_.backward_s / steps,
        1e3 * times_.reduce_s / steps, 1e3 * times_.update_s / steps);
  }
  *this = PretrainPrinter(facts_);
  return text;
}

}  // namespace reknit
