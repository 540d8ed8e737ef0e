// A model from a Hugging Face folder in a store, and back.
#pragma once

#include "reknit/checkpoint/hf_folder.h"
#include "reknit/models/decoder.h"
#include "reknit/store/store.h"

#include <memory>
#include <string>

namespace reknit {

/// What a model is loaded for.
enum class ValueHead {
  kNone,         ///< a language model
  kRequired,     ///< InputError if the folder has none
  kNewIfAbsent,  ///< a folder without one gets a head drawn from `seed`, said in the log
};

/// A decoder and the store that holds its parameters. Movable only as a pointer: leases
/// and optimizers refer to both.
struct Model {
  Decoder decoder;
  Store store;

  Model(ModelSpec spec, StoreSettings settings, StoreComms comms, SlotPool& pool);
};

/// Declares groups and order and seals the store; the caller seals the pool and then
/// loads. Values are zero until load_model or init_model.
std::unique_ptr<Model> make_model(ModelSpec spec, StoreSettings settings, StoreComms comms,
                                  SlotPool& pool);

/// Reads every tensor of the folder into the shards. Local: each rank reads the files and
/// keeps its part. Before anything is read: InputError listing tensors that are missing,
/// or of another shape than the configuration says.
void load_model(Model& model, const HfFolder& folder, ValueHead head, uint64_t seed);

/// Fills with the values of init_values.h: those of a folder that `reknit init` wrote with
/// the same seed.
void init_model(Model& model, uint64_t seed);

/// Writes a folder that transformers loads, in `dtype`, with the files of `source` that
/// belong to it. Collective over the world; its rank 0 writes, and an error of one rank aborts
/// the communicator of all.
void export_model(Model& model, const HfFolder& source, at::ScalarType dtype,
                  const std::string& path, IfPresent if_present);

}  // namespace reknit
