// One model's parameters and optimizer states in one file per shard rank, in pieces that any
// other placement and rank count can find.
//
// A file holds flat tensors named KIND:PARAMETER@OFFSET: the elements of the flattened
// parameter from OFFSET on. KIND is, for a trained parameter, master, average or a state of the
// optimizer, as exp_avg (fp32), for a frozen one weight (in its own dtype). No element is in two
// files: replicas write nothing, and what is whole on every rank is written in parts.
#pragma once

#include "reknit/checkpoint/safetensors.h"
#include "reknit/optim/optimizer.h"
#include "reknit/store/store.h"

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace reknit {

/// True on the ranks that write: those of the first shard group.
bool writes_shards(const Store& store);

/// What a checkpoint holds of a model beside its parameters; null: not that. Not owned.
struct ShardExtras {
  const Optimizer* optimizer = nullptr;         ///< its states
  std::vector<at::Tensor>* averages = nullptr;  ///< moving averages, one for each of shards()
};

/// What this rank writes: views of the live memory, valid until the next update, ordered
/// after nothing: the caller has waited for the compute stream. Local. Frozen parameters
/// only with `with_frozen`.
NamedTensors shard_tensors(Store& store, const ShardExtras& extras, bool with_frozen);

/// Name, shape and trainable of every parameter in the model's order.
nlohmann::json parameter_table(const Store& store);

/// Throws InputError naming the first parameter in which `table` (of `where`) and the
/// store differ; `trainable` counts only with `compare_trainable`.
void require_same_parameters(const nlohmann::json& table, const Store& store,
                             bool compare_trainable, const std::string& where);

/// The files of one model, their headers read.
class ShardReader {
 public:
  /// Throws InputError if a file is damaged or a name is not of the form above.
  explicit ShardReader(const std::vector<std::string>& paths);

  /// Throws InputError naming the first parameter of the store that is not covered
  /// exactly once, for everything that load() will read. A frozen parameter may be
  /// absent where `frozen_excluded`. Local.
  void check(Store& store, const ShardExtras& extras, bool frozen_excluded) const;

  /// Fills weights, masters and `extras`: every rank takes its parts
  /// out of the mapped files. 16-bit weights are rounded from the masters. Parameters that
  /// are absent keep their values. Local; between passes, on all ranks alike.
  void load(Store& store, const ShardExtras& extras) const;

  /// The whole parameter out of its pieces: the master, or the moving average, or the weight of
  /// a frozen one. Throws InputError if it is not covered exactly once.
  at::Tensor whole(const ParamSpec& param, bool average) const;

 private:
  struct Piece {
    Extent extent;  ///< of the flattened parameter
    size_t file;
    std::string name;
  };
  using Pieces = std::vector<Piece>;

  const Pieces& pieces(const std::string& kind, const std::string& param) const;
  const Pieces& values_of(const std::string& param) const;
  void require_cover(const std::string& kind, const ParamSpec& param) const;
  void copy(const std::string& kind, const ShardSlice& slice, const at::Tensor& values) const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Pieces> pieces_;  ///< by "KIND:PARAMETER", in order of offset
};

}  // namespace reknit
