// pytorch_model.bin: the zip form of torch.save, read without running any of it.
#include "reknit/checkpoint/pickle.h"

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/torch_archive.h"

namespace reknit {

TorchFile::TorchFile(const std::string& path) : TorchFile(MappedFile::open(path)) {}

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  const std::string& path = file_->path();
  const TorchArchive archive(file_, PickleNames::kStateDict);
  const PickleValue& root = archive.root();
  require<InputError>(root.kind == PickleKind::kDict, path,
                      " holds no dictionary of tensors by name");
  for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
    require<InputError>(root.items[i]->kind == PickleKind::kText, path,
                        " has a key that is no text");
    const std::string name(root.items[i]->text);
    std::optional<StoredTensor> tensor = archive.tensor(name, *root.items[i + 1]);
    if (!tensor) {
      continue;
    }
    require<InputError>(index_.emplace(name, tensors_.size()).second, path, " names the tensor ",
                        name, " twice");
    tensors_.push_back(std::move(tensor->info));
    views_.push_back({tensor->offset, std::move(tensor->strides)});
  }
}

at::Tensor TorchFile::read(const std::string& name) const {
  const auto found = index_.find(name);
  require<InputError>(found != index_.end(), file_->path(), " has no tensor ", name);
  const TensorInfo& info = tensors_[found->second];
  const View& view = views_[found->second];
  return tensor_over(file_, view.offset, info.dtype, info.shape, view.strides);
}

}  // namespace reknit
