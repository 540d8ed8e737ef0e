#include "reknit/optim/matrix_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace reknit {
namespace {

double work_of(const CutMatrix& matrix) {
  const auto small = static_cast<double>(std::min(matrix.rows, matrix.columns));
  const auto large = static_cast<double>(std::max(matrix.rows, matrix.columns));
  return small * small * (2 * large + small);
}

int64_t numel_of(const CutMatrix& matrix) {
  return matrix.rows * matrix.columns;
}

/// Elements that each rank has to send to each owner so far.
class Pieces {
 public:
  explicit Pieces(int ranks) : ranks_(ranks), length_(static_cast<size_t>(ranks) * ranks, 0) {}

  int64_t longest_with(const CutMatrix& matrix, int owner) const {
    int64_t longest = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      longest = std::max(longest, at(rank, owner) + matrix.held[rank].size());
    }
    return longest;
  }
  void add(const CutMatrix& matrix, int owner) {
    for (int rank = 0; rank < ranks_; ++rank) {
      length_[index(rank, owner)] += matrix.held[rank].size();
    }
  }
  int64_t longest() const { return *std::max_element(length_.begin(), length_.end()); }

 private:
  size_t index(int rank, int owner) const { return static_cast<size_t>(rank) * ranks_ + owner; }
  int64_t at(int rank, int owner) const { return length_[index(rank, owner)]; }

  int ranks_;
  std::vector<int64_t> length_;
};

}  // namespace

std::vector<int> balanced_owners(const std::vector<CutMatrix>& matrices, int ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return work_of(matrices[a]) > work_of(matrices[b]); });
  std::vector<double> load(ranks, 0.0);
  Pieces pieces(ranks);
  std::vector<int> owners(matrices.size(), 0);
  for (const size_t i : order) {
    int best = 0;
    int64_t best_piece = pieces.longest_with(matrices[i], 0);
    for (int rank = 1; rank < ranks; ++rank) {
      const int64_t piece = pieces.longest_with(matrices[i], rank);
      if (load[rank] < load[best] || (load[rank] == load[best] && piece < best_piece)) {
        best = rank;
        best_piece = piece;
      }
    }
    owners[i] = best;
    load[best] += work_of(matrices[i]);
    pieces.add(matrices[i], best);
  }
  return owners;
}

MatrixExchange::MatrixExchange(Store& store, const std::function<bool(const ParamSpec&)>& takes,
                               int64_t round_numel)
    : store_(store), cut_(store.settings().placement.optimizer_shards() > 1) {
  const int ranks = cut_ ? store.settings().placement.optimizer_shards() : 1;
  const int mine = cut_ ? store.shard_index() : 0;
  size_t shard = 0;
  for (GroupId g = 0; g < store.num_groups(); ++g) {
    const GroupLayout& layout = store.layout(g);
    for (const SegmentLayout& segment : layout.segments) {
      for (const int p : segment.params) {
        const ParamSpec& param = store.spec(g).params[p];
        const ParamPlace& place = layout.places[p];
        if (!segment.trainable || place.numel == 0 || !takes(param)) {
          continue;
        }
        CutMatrix matrix{param.shape.at(0), param.shape.at(1), shard, {}, {}};
        for (int rank = 0; rank < ranks; ++rank) {
          const Extent all = cut_ ? segment.shard(rank) : Extent{0, segment.padded};
          const Extent part = intersect({place.offset, place.offset + place.numel}, all);
          matrix.held.push_back({part.begin - place.offset, part.end - place.offset});
          if (rank == mine) {
            matrix.place = {part.begin - all.begin, part.end - all.begin};
          }
        }
        matrices_.push_back(std::move(matrix));
      }
      shard += segment.trainable ? 1 : 0;
    }
  }
  for (size_t i = 0; cut_ && i < matrices_.size();) {
    Round round;
    std::vector<CutMatrix> together;
    for (int64_t numel = 0; i < matrices_.size(); ++i) {
      numel += numel_of(matrices_[i]);
      if (!together.empty() && numel > round_numel) {
        break;
      }
      together.push_back(matrices_[i]);
      round.matrices.push_back(i);
    }
    round.owners = balanced_owners(together, ranks);
    Pieces pieces(ranks);
    for (size_t k = 0; k < together.size(); ++k) {
      pieces.add(together[k], round.owners[k]);
    }
    round.piece = pieces.longest();
    rounds_.push_back(std::move(round));
  }
}

std::vector<int64_t> MatrixExchange::offsets(const Round& round, int from) const {
  std::vector<int64_t> used(store_.comms().reduce->size(), 0);
  std::vector<int64_t> offsets;
  for (size_t k = 0; k < round.matrices.size(); ++k) {
    int64_t& next = used[round.owners[k]];
    offsets.push_back(next);
    next += matrices_[round.matrices[k]].held[from].size();
  }
  return offsets;
}

void MatrixExchange::transform(const std::vector<at::Tensor>& flats,
                               const std::function<at::Tensor(const at::Tensor&)>& change) const {
  for (const Round& round : rounds_) {
    run(round, flats, change);
  }
  for (size_t i = 0; !cut_ && i < matrices_.size(); ++i) {
    const CutMatrix& matrix = matrices_[i];
    const at::Tensor part = flats[matrix.shard].narrow(0, matrix.place.begin, matrix.place.size());
    part.copy_(change(part.view({matrix.rows, matrix.columns}).to(at::kBFloat16)).reshape(-1));
  }
}

void MatrixExchange::run(const Round& round, const std::vector<at::Tensor>& flats,
                         const std::function<at::Tensor(const at::Tensor&)>& change) const {
  Communicator& comm = *store_.comms().reduce;
  const Stream& stream = this_rank().compute;
  const int me = comm.rank();
  const auto options = at::TensorOptions(at::kBFloat16).device(this_rank().device);
  at::Tensor send = at::empty({comm.size() * round.piece}, options);
  at::Tensor receive = at::empty_like(send);
  const auto slot = [&](const at::Tensor& buffer, int rank, int64_t offset, Extent held) {
    return buffer.narrow(0, rank * round.piece + offset, held.size());
  };
  const std::vector<int64_t> mine = offsets(round, me);
  const auto each_held = [&](auto visit) {
    for (size_t k = 0; k < round.matrices.size(); ++k) {
      const CutMatrix& matrix = matrices_[round.matrices[k]];
      if (matrix.held[me].size() > 0) {
        visit(flats[matrix.shard].narrow(0, matrix.place.begin, matrix.place.size()), k,
              matrix.held[me]);
      }
    }
  };
  each_held([&](const at::Tensor& part, size_t k, Extent held) {
    slot(send, round.owners[k], mine[k], held).copy_(part);
  });
  receive = comm.all_to_all(receive, send, stream).wait(stream);
  std::vector<std::vector<int64_t>> theirs;
  for (int rank = 0; rank < comm.size(); ++rank) {
    theirs.push_back(offsets(round, rank));
  }
  for (size_t k = 0; k < round.matrices.size(); ++k) {
    const CutMatrix& matrix = matrices_[round.matrices[k]];
    if (round.owners[k] != me) {
      continue;
    }
    const at::Tensor whole = at::empty({numel_of(matrix)}, options);
    const auto each_part = [&](auto visit) {
      for (int rank = 0; rank < comm.size(); ++rank) {
        const Extent held = matrix.held[rank];
        if (held.size() > 0) {
          visit(held, slot(receive, rank, theirs[rank][k], held));
        }
      }
    };
    each_part([&](Extent held, const at::Tensor& part) {
      whole.narrow(0, held.begin, held.size()).copy_(part);
    });
    const at::Tensor changed = change(whole.view({matrix.rows, matrix.columns})).reshape(-1);
    each_part([&](Extent held, const at::Tensor& part) {
      part.copy_(changed.narrow(0, held.begin, held.size()));
    });
  }
  send = comm.all_to_all(at::empty_like(receive), receive, stream).wait(stream);
  each_held([&](const at::Tensor& part, size_t k, Extent held) {
    part.copy_(slot(send, round.owners[k], mine[k], held));
  });
}

}  // namespace reknit
