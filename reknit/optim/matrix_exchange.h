// Brings matrices that are cut over the shard ranks to one owner each, and their successors
// back to where the pieces lie.
//
// In a round every rank sends each owner one piece of equal length: what it holds of the
// owner's matrices, one after the other, then padding. The way back is the same, mirrored.
#pragma once

#include "reknit/store/store.h"

#include <functional>
#include <vector>

namespace reknit {

/// A trainable matrix and where its elements lie.
struct CutMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  size_t shard = 0;          ///< as in Store::shards
  Extent place;              ///< of this rank's part in that shard; may be empty
  std::vector<Extent> held;  ///< by shard rank: elements of the flattened matrix
};

/// For each matrix its owner: the heaviest first, to the rank that has least to do; among
/// equals to the one that lets the longest piece stay shortest. The work is that of
/// multiplying a matrix with its transpose and the square of it with the matrix.
std::vector<int> balanced_owners(const std::vector<CutMatrix>& matrices, int ranks);

class MatrixExchange {
 public:
  /// The matrices of all parameters for which `takes` is true, in the model's order.
  /// `round_numel`: elements of the matrices of one round (one matrix at least).
  MatrixExchange(Store& store, const std::function<bool(const ParamSpec&)>& takes,
                 int64_t round_numel);

  /// Replaces the matrices in `flats` (fp32, one for each shard) by `change` of them. The
  /// owner sees a whole matrix in bf16, [rows, columns], and returns its successor. Without
  /// sharding every rank is the owner of all. Collective over the shard ranks.
  void transform(const std::vector<at::Tensor>& flats,
                 const std::function<at::Tensor(const at::Tensor&)>& change) const;

  const std::vector<CutMatrix>& matrices() const { return matrices_; }

 private:
  struct Round {
    std::vector<size_t> matrices;
    std::vector<int> owners;
    int64_t piece = 0;  ///< elements
  };
  /// Where rank `from`'s part of each matrix of the round begins in its piece for the owner.
  std::vector<int64_t> offsets(const Round& round, int from) const;
  void run(const Round& round, const std::vector<at::Tensor>& flats,
           const std::function<at::Tensor(const at::Tensor&)>& change) const;

  Store& store_;
  bool cut_;
  std::vector<CutMatrix> matrices_;
  std::vector<Round> rounds_;
};

}  // namespace reknit
