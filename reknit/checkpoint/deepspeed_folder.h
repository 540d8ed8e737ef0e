// A checkpoint folder of DeepSpeed (ZeRO stages 0 to 3, MiCS): parameters, optimizer states
// and progress, whatever the number of ranks that wrote it. Nothing of it is executed.
//
//   FOLDER/latest                                       the name of the newest tag
//   FOLDER/TAG/mp_rank_00_model_states.pt               weights, shapes, progress; stage 0: all
//             /zero_pp_rank_R_mp_rank_00_model_states.pt     the same, stage 3
//             /[bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt  flat fp32 masters and states
//
// Stages 1 and 2: the parameters of each optimizer group one after the other, padded, cut in
// equal parts. Stage 3: each parameter cut in equal parts (the last padded), a rank's parts one
// after the other in a row of flat tensors. MiCS: the same over the ranks of one shard group.
#pragma once

#include "reknit/checkpoint/deepspeed_tree.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// A dynamic loss scale, in DeepSpeed's counts.
struct DeepSpeedScaler {
  double scale = 1.0;
  int64_t iteration = 0;
  int64_t last_overflow = -1;
  std::optional<int64_t> hysteresis;  ///< stage 0 does not save it
};

/// How far the run had come.
struct DeepSpeedProgress {
  int64_t steps = 0;  ///< skipped ones included
  int64_t skipped = 0;
  int64_t samples = 0;               ///< sequences of all ranks
  int64_t optimizer_steps = 0;       ///< as the optimizer counts; stage 0 may count one more
  std::optional<int64_t> scheduled;  ///< updates that the schedule has counted; none: there is none
  std::optional<DeepSpeedScaler> scaler;
  std::string client;  ///< what the user added: "iteration 3, note"; may be empty
};

/// An opened checkpoint; all files and shapes are checked, no values read. Immutable; threads
/// may read at once.
class DeepSpeedFolder {
 public:
  /// True for a folder with such files, or with one that `latest` names. Throws InputError for
  /// a folder that cannot be read.
  static bool is_one(const std::string& path);

  /// `path`: the folder that holds `latest`, or a tag's. Throws InputError with names and
  /// values: a missing or damaged file, another number of ranks than the files say, flat
  /// tensors that do not fit the shapes, tensor or pipeline parallelism, experts, elastic
  /// checkpoints, names that a checkpoint does not need.
  explicit DeepSpeedFolder(const std::string& path);

  const std::string& path() const { return path_; }  ///< the tag's folder
  int zero_stage() const { return stage_; }
  int ranks() const { return ranks_; }  ///< over which parameters or states are cut
  const std::string& version() const { return version_; }
  const DeepSpeedProgress& progress() const { return progress_; }

  /// Names as the trained module had them; a tied one once. fp32 where it was trained, as
  /// saved where it was frozen.
  std::vector<TensorInfo> parameters() const;
  /// Throws InputError if there is none of that name.
  bool trained(const std::string& name) const { return param(name).trained; }
  /// Host copies: the fp32 master of a trained parameter, a frozen one as it was saved.
  at::Tensor value(const std::string& name) const;
  /// Of a trained parameter: "exp_avg"; in the parameter's shape.
  at::Tensor state(const std::string& name, const std::string& kind) const;
  /// The kinds that every trained parameter has; empty before the first update.
  std::vector<std::string> state_kinds() const;

 private:
  /// A rank's flat tensor and the optimizer's states of it.
  struct Flat {
    const DeepSpeedFile* file = nullptr;
    StoredTensor master;
    std::map<std::string, StoredTensor> states;
  };
  struct Part {
    const Flat* flat;
    int64_t offset, numel;
  };
  struct Param {
    TensorInfo info;
    bool trained = true;
    std::vector<Part> parts;                                               ///< where trained
    std::vector<std::pair<const DeepSpeedFile*, StoredTensor>> fragments;  ///< where frozen
  };
  struct Named {
    std::string name;
    std::vector<int64_t> shape;
    int64_t padding = 0;  ///< elements after it
  };

  const Param& param(const std::string& name) const;
  static at::Tensor joined(const Param& param,
                           const std::function<const StoredTensor&(const Flat&)>& of);
  using Groups = std::vector<std::vector<Named>>;
  const DeepSpeedFile& first() const { return *models_.front(); }
  void open_files();
  void open_sharded(const std::vector<std::string>& optim_names);
  void read_progress();
  void read_scaler(const DeepSpeedFile& file, const PickleValue& optimizer);
  void read_flats(const DeepSpeedFile& file, const PickleValue& masters,
                  const PickleValue& optimizer);
  void read_states(const DeepSpeedFile& file, const PickleValue& optimizer,
                   std::vector<Flat>& flats);
  Groups named_groups() const;
  void read_paddings(Groups& groups) const;
  void cut_groups(const Groups& groups);
  void cut_params(const Groups& groups);
  void read_unsharded();
  std::vector<Named> module_params() const;
  void read_frozen();
  void add_param(Param param);

  std::string path_;
  int stage_ = 0;
  int ranks_ = 1;
  std::string version_;
  DeepSpeedProgress progress_;
  std::vector<std::unique_ptr<DeepSpeedFile>> models_, optims_;
  std::vector<std::vector<Flat>> flats_;  ///< [rank][group]
  std::vector<Param> params_;
  std::map<std::string, size_t> index_;
};

}  // namespace reknit
