#include "reknit/comm/perform.h"

#include "reknit/base/error.h"

#include <c10/core/GradMode.h>

namespace reknit {
namespace {

at::ScalarType accumulate_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

void all_gather(const std::vector<Operation>& ranks, size_t item) {
  const int size = static_cast<int>(ranks.size());
  for (int source = 0; source < size; ++source) {
    const at::Tensor shard = ranks[source].in[item].view({-1});
    for (int target = 0; target < size; ++target) {
      at::Tensor piece = piece_of(ranks[target].out[item], source, size);
      if (piece.data_ptr() != shard.data_ptr()) {
        piece.copy_(shard);
      }
    }
  }
}

void reduce_scatter(const std::vector<Operation>& ranks, size_t item) {
  const int size = static_cast<int>(ranks.size());
  for (int target = 0; target < size; ++target) {
    std::vector<at::Tensor> inputs;
    for (const Operation& rank : ranks) {
      inputs.push_back(piece_of(rank.in[item], target, size));
    }
    const at::Tensor shard = ranks[target].out[item];
    shard.view({-1}).copy_(reduce_in_order(inputs, ReduceOp::kSum, shard.device()));
  }
}

void all_reduce(const std::vector<Operation>& ranks, size_t item) {
  std::vector<at::Tensor> tensors;
  for (const Operation& rank : ranks) {
    tensors.push_back(rank.out[item].view({-1}));
  }
  const at::Tensor result = reduce_in_order(tensors, ranks[0].op, tensors[0].device());
  for (at::Tensor& tensor : tensors) {
    tensor.copy_(result);
  }
}

void broadcast(const std::vector<Operation>& ranks, size_t item) {
  const at::Tensor source = ranks[ranks[0].root].out[item].view({-1});
  for (const Operation& rank : ranks) {
    at::Tensor target = rank.out[item].view({-1});
    if (target.data_ptr() != source.data_ptr()) {
      target.copy_(source);
    }
  }
}

void all_to_all(const std::vector<Operation>& ranks, size_t item) {
  const int size = static_cast<int>(ranks.size());
  for (int source = 0; source < size; ++source) {
    for (int target = 0; target < size; ++target) {
      piece_of(ranks[target].out[item], source, size)
          .copy_(piece_of(ranks[source].in[item], target, size));
    }
  }
}

}  // namespace

at::Tensor reduce_in_order(const std::vector<at::Tensor>& inputs, ReduceOp op, at::Device device) {
  const auto type = accumulate_type(inputs[0].scalar_type());
  at::Tensor result = at::empty_like(inputs[0], inputs[0].options().device(device).dtype(type));
  result.copy_(inputs[0]);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const at::Tensor input = inputs[rank].to(device, type);
    if (op == ReduceOp::kMax) {
      at::maximum_out(result, result, input);
    } else {
      result.add_(input);
    }
  }
  return result;
}

void perform(const std::vector<Operation>& ranks) {
  const c10::AutoGradMode no_grad(false);
  for (size_t item = 0; item < ranks[0].payload().size(); ++item) {
    if (ranks[0].payload()[item].numel() == 0) {
      continue;
    }
    switch (ranks[0].kind) {
      case CommKind::kAllGather:
        all_gather(ranks, item);
        break;
      case CommKind::kReduceScatter:
        reduce_scatter(ranks, item);
        break;
      case CommKind::kAllReduce:
        all_reduce(ranks, item);
        break;
      case CommKind::kBroadcast:
        broadcast(ranks, item);
        break;
      case CommKind::kAllToAll:
        all_to_all(ranks, item);
        break;
      case CommKind::kBarrier:
      case CommKind::kSplit:
        break;
    }
  }
}

}  // namespace reknit
