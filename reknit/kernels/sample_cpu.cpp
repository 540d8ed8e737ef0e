#include "reknit/kernels/sample_cpu.h"

#include "reknit/base/error.h"
#include "reknit/base/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace reknit::ops::cpu {
namespace {

/// Columns in the order of their probability, sorted only as far as it is asked for:
/// larger logits first, among equals the lower column.
class Ranking {
 public:
  Ranking(const float* logits, int64_t columns) : logits_(logits), order_(columns) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  /// The column of rank `rank`; sorts in steps that grow.
  int32_t at(int64_t rank) {
    while (rank >= sorted_) {
      sort_until(std::max<int64_t>(64, sorted_ * 4));
    }
    return order_[rank];
  }

 private:
  void sort_until(int64_t end) {
    end = std::min(end, static_cast<int64_t>(order_.size()));
    const auto before = [this](int32_t a, int32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    };
    std::nth_element(order_.begin() + sorted_, order_.begin() + end - 1, order_.end(), before);
    std::sort(order_.begin() + sorted_, order_.begin() + end, before);
    sorted_ = end;
  }

  const float* logits_;
  std::vector<int32_t> order_;
  int64_t sorted_ = 0;
};

/// How many columns top_k and top_p keep, by rank. `weights` are unnormalised
/// probabilities.
int64_t num_kept(Ranking& ranking, const float* weights, int64_t columns,
                 const SampleSettings& settings) {
  const int64_t limit = settings.top_k > 0 ? std::min(settings.top_k, columns) : columns;
  if (settings.top_p >= 1.0) {
    return limit;
  }
  double total = 0;
  if (limit == columns) {
    total = std::accumulate(weights, weights + columns, 0.0);
  } else {
    for (int64_t rank = 0; rank < limit; ++rank) {
      total += weights[ranking.at(rank)];
    }
  }
  double reached = 0;
  for (int64_t rank = 0; rank < limit; ++rank) {
    reached += weights[ranking.at(rank)];
    if (reached >= settings.top_p * total) {
      return rank + 1;
    }
  }
  return limit;
}

/// The first column, in ascending order, at which the sum of weights exceeds the
/// share `u` of the total.
template <class Column>
int64_t draw(const float* weights, int64_t count, double u, Column&& column) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += weights[column(i)];
  }
  double reached = 0;
  int64_t last = column(0);
  for (int64_t i = 0; i < count; ++i) {
    const float weight = weights[column(i)];
    reached += weight;
    if (weight > 0) {
      last = column(i);
      if (reached > u * total) {
        break;
      }
    }
  }
  return last;
}

int64_t draw_filtered(const float* logits, const float* weights, int64_t columns,
                      const SampleSettings& settings, double u) {
  if (settings.top_k <= 0 && settings.top_p >= 1.0) {
    return draw(weights, columns, u, [](int64_t i) { return i; });
  }
  Ranking ranking(logits, columns);
  std::vector<int64_t> kept(num_kept(ranking, weights, columns, settings));
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    kept[rank] = ranking.at(static_cast<int64_t>(rank));
  }
  std::sort(kept.begin(), kept.end());
  return draw(weights, static_cast<int64_t>(kept.size()), u, [&](int64_t i) { return kept[i]; });
}

}  // namespace

Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos) {
  const int64_t batch = logits.size(0);
  const int64_t columns = settings.vocab == 0 ? logits.size(1) : settings.vocab;
  REKNIT_INVARIANT(columns > 0 && columns <= logits.size(1), "a vocabulary of ", columns, " in ",
                   logits.size(1), " logits");
  const at::Tensor all = logits.narrow(1, 0, columns);
  const at::Tensor allowed = all.clone(at::MemoryFormat::Contiguous);
  const auto* key = keys.const_data_ptr<int64_t>();
  const auto* position = positions.const_data_ptr<int64_t>();
  const auto* until = forbidden_until.const_data_ptr<int64_t>();
  float* rows = allowed.mutable_data_ptr<float>();
  for (int64_t b = 0; b < batch; ++b) {
    if (eos >= 0 && eos < columns && until[b] > position[b]) {
      rows[b * columns + eos] = -std::numeric_limits<float>::infinity();
    }
  }
  Sampled result;
  if (settings.temperature <= 0) {
    result.tokens = allowed.argmax(1);
  } else {
    const at::Tensor weights = (allowed - allowed.amax(1, true)).div_(settings.temperature).exp_();
    result.tokens = at::zeros({batch}, keys.options());
    for (int64_t b = 0; b < batch; ++b) {
      const float* row = weights.const_data_ptr<float>() + b * columns;
      if (!std::isnan(row[0])) {
        const double u = Philox{static_cast<uint64_t>(key[b])}.uniform(position[b], 0);
        result.tokens.mutable_data_ptr<int64_t>()[b] =
            draw_filtered(rows + b * columns, row, columns, settings, u);
      }
    }
  }
  result.logp = all.gather(1, result.tokens.unsqueeze(1)).squeeze(1) - at::logsumexp(all, 1);
  return result;
}

}  // namespace reknit::ops::cpu
