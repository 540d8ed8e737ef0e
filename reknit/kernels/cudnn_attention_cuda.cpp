// Plans of attention forward and backward, made by cuDNN and kept by shape.
#include "reknit/kernels/cudnn_attention.h"

#include "reknit/base/error.h"
#include "reknit/kernels/attention_limits.h"
#include "reknit/kernels/cuda_args.h"

#include <ATen/cudnn/Handle.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <compare>
#include <map>

namespace reknit::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Lengths of unequal sequences are rounded up to it: few plans for many batches.
constexpr int64_t kLengthStep = 256;

/// What a plan depends on; rows are those of q, k and v, in elements.
struct Shape {
  c10::DeviceIndex device;
  at::ScalarType dtype;
  bool backward, alibi, ragged;
  int64_t batch, length, num_heads, num_kv_heads, dim;
  int64_t row, head_stride, kv_head_stride;
  double scale;
  auto operator<=>(const Shape&) const = default;
};

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kStats, kDOut, kDq, kDk, kDv };
/// Of unequal sequences: their lengths, and where each begins in a row of qkv and of out.
enum RaggedUid : int64_t { kLengths = 20, kRowPlaces, kOutPlaces };

using Sizes = std::vector<int64_t>;

/// A graph with tensors of one shape, and the plan that cuDNN made of it.
struct Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;

  explicit Plan(const Shape& shape);
  void execute(const Shape& shape, const Packing& packing,
               std::unordered_map<int64_t, void*> memory);

 private:
  void describe_forward(const Shape& shape);
  void describe_backward(const Shape& shape);
  Attributes tensor(int64_t uid, const Sizes& sizes, const Sizes& strides,
                    const Attributes& places);
  Attributes integers(int64_t uid, int64_t count, fe::DataType_t type);
  template <class Sdpa>
  void mask(Sdpa& attributes, const Shape& shape);

  Attributes lengths_, row_places_, out_places_;  // null unless the shape is ragged
};

void check(fe::error_t error, const char* what, const Shape& shape) {
  require<CommError>(error.is_good(), "cuDNN's attention", shape.backward ? " backward" : "",
                     " of ", shape.batch, " x ", shape.length, " tokens, ", shape.num_heads,
                     " heads of ", shape.dim, ", could not be ", what, ": ", error.get_message());
}

fe::DataType_t type_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
}

/// Dimensions and strides as cuDNN counts them: batch, head, token, element.
struct Places {
  Sizes q, q_strides, kv, kv_strides, out_strides, stats, stats_strides;

  explicit Places(const Shape& s)
      : q{s.batch, s.num_heads, s.length, s.dim},
        q_strides{s.length * s.row, s.head_stride, s.row, 1},
        kv{s.batch, s.num_kv_heads, s.length, s.dim},
        kv_strides{s.length * s.row, s.kv_head_stride, s.row, 1},
        out_strides{s.length * s.num_heads * s.dim, s.dim, s.num_heads * s.dim, 1},
        stats{s.batch, s.num_heads, s.length, 1},
        stats_strides{s.num_heads * s.length, s.length, 1, 1} {}
};

void output(const Attributes& tensor, int64_t uid, const Sizes& sizes, const Sizes& strides,
            const Attributes& places) {
  tensor->set_output(true).set_uid(uid).set_dim(sizes).set_stride(strides);
  if (places) {
    tensor->set_ragged_offset(places);
  }
}

Attributes Plan::tensor(int64_t uid, const Sizes& sizes, const Sizes& strides,
                        const Attributes& places) {
  auto attributes = fe::graph::Tensor_attributes().set_uid(uid).set_dim(sizes).set_stride(strides);
  if (places) {
    attributes.set_ragged_offset(places);
  }
  return graph.tensor(attributes);
}

Attributes Plan::integers(int64_t uid, int64_t count, fe::DataType_t type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({count, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(type));
}

Plan::Plan(const Shape& shape) {
  graph.set_io_data_type(type_of(shape.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (shape.ragged) {
    lengths_ = integers(kLengths, shape.batch, fe::DataType_t::INT32);
    row_places_ = integers(kRowPlaces, shape.batch + 1, fe::DataType_t::INT64);
    out_places_ = integers(kOutPlaces, shape.batch + 1, fe::DataType_t::INT64);
  }
  shape.backward ? describe_backward(shape) : describe_forward(shape);
  check(graph.build(at::native::getCudnnHandle(), {fe::HeurMode_t::A}), "planned", shape);
  check(graph.get_workspace_size(workspace), "planned", shape);
}

template <class Sdpa>
void Plan::mask(Sdpa& attributes, const Shape& shape) {
  attributes.set_attn_scale(static_cast<float>(shape.scale))
      .set_alibi_mask(shape.alibi)
      .set_causal_mask(true);
  if (shape.ragged) {
    attributes.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
  }
}

void Plan::describe_forward(const Shape& shape) {
  const Places at(shape);
  auto attributes = fe::graph::SDPA_attributes().set_generate_stats(true);
  mask(attributes, shape);
  const auto [out, stats] = graph.sdpa(tensor(kQ, at.q, at.q_strides, row_places_),
                                       tensor(kK, at.kv, at.kv_strides, row_places_),
                                       tensor(kV, at.kv, at.kv_strides, row_places_), attributes);
  output(out, kOut, at.q, at.out_strides, out_places_);
  output(stats, kStats, at.stats, at.stats_strides, nullptr);
  stats->set_data_type(fe::DataType_t::FLOAT);
}

void Plan::describe_backward(const Shape& shape) {
  const Places at(shape);
  auto attributes = fe::graph::SDPA_backward_attributes();
  mask(attributes, shape);
  const Attributes stats = tensor(kStats, at.stats, at.stats_strides, nullptr);
  stats->set_data_type(fe::DataType_t::FLOAT);
  const auto [dq, dk, dv] = graph.sdpa_backward(
      tensor(kQ, at.q, at.q_strides, row_places_), tensor(kK, at.kv, at.kv_strides, row_places_),
      tensor(kV, at.kv, at.kv_strides, row_places_),
      tensor(kOut, at.q, at.out_strides, out_places_),
      tensor(kDOut, at.q, at.out_strides, out_places_), stats, attributes);
  output(dq, kDq, at.q, at.q_strides, row_places_);
  output(dk, kDk, at.kv, at.kv_strides, row_places_);
  output(dv, kDv, at.kv, at.kv_strides, row_places_);
}

void Plan::execute(const Shape& shape, const Packing& packing,
                   std::unordered_map<int64_t, void*> memory) {
  const at::Tensor scratch =
      at::empty({workspace}, at::device(c10::Device(c10::kCUDA, shape.device)).dtype(at::kByte));
  at::Tensor lengths, row_places, out_places;
  if (shape.ragged) {
    const at::Tensor& offsets = packing.offsets_device;
    lengths = offsets.slice(0, 1) - offsets.slice(0, 0, shape.batch);
    const at::Tensor wide = offsets.to(at::kLong);
    row_places = wide * shape.row;
    out_places = wide * (shape.num_heads * shape.dim);
    memory[kLengths] = lengths.mutable_data_ptr();
    memory[kRowPlaces] = row_places.mutable_data_ptr();
    memory[kOutPlaces] = out_places.mutable_data_ptr();
  }
  check(graph.execute(at::native::getCudnnHandle(), memory, scratch.mutable_data_ptr()), "run",
        shape);
}

/// The calling thread's plans: a rank has its own, as it has its own cuDNN handle.
Plan& plan_of(const Shape& shape) {
  thread_local std::map<Shape, std::unique_ptr<Plan>> plans;
  std::unique_ptr<Plan>& plan = plans[shape];
  if (!plan) {
    plan = std::make_unique<Plan>(shape);
  }
  return *plan;
}

bool equally_long(const Packing& packing) {
  return std::all_of(packing.lengths.begin(), packing.lengths.end(),
                     [&](int64_t length) { return length == packing.max_length; });
}

Shape shape_of(const Heads& in, const Packing& packing, double scale, bool alibi, bool backward) {
  const bool ragged = !equally_long(packing);
  const int64_t length = ragged ? (packing.max_length + kLengthStep - 1) / kLengthStep * kLengthStep
                                : packing.max_length;
  return {in.q.device().index(),
          in.q.scalar_type(),
          backward,
          alibi,
          ragged,
          packing.num_sequences(),
          length,
          in.q.size(1),
          in.k.size(1),
          in.q.size(2),
          in.q.stride(0),
          in.q.stride(1),
          in.k.stride(1),
          scale};
}

}  // namespace

bool cudnn_attention_takes(const Heads& in, const Packing& packing, const at::Tensor& slopes) {
  const int64_t dim = in.q.size(2);
  const auto shortest = std::min_element(packing.lengths.begin(), packing.lengths.end());
  return in.q.scalar_type() != at::kFloat && dim % 8 == 0 && dim <= kCudnnWidestHead &&
         packing.max_length >= kCudnnShortest && *shortest > 0 &&
         !at::globalContext().deterministicAlgorithms() &&
         (slopes.defined() || *shortest == packing.max_length);
}

AttentionOut cudnn_attention(const Heads& in, const Packing& packing, double scale, bool alibi) {
  const Shape shape = shape_of(in, packing, scale, alibi, false);
  AttentionOut result{
      at::empty({in.q.size(0), shape.num_heads * shape.dim}, in.q.options()),
      at::empty({shape.batch, shape.num_heads, shape.length}, in.q.options().dtype(at::kFloat))};
  plan_of(shape).execute(shape, packing,
                         {{kQ, in.q.data_ptr()},
                          {kK, in.k.data_ptr()},
                          {kV, in.v.data_ptr()},
                          {kOut, result.out.data_ptr()},
                          {kStats, result.lse.data_ptr()}});
  return result;
}

void cudnn_attention_backward(const at::Tensor& d_out, const Heads& in, const AttentionOut& saved,
                              const Packing& packing, double scale, bool alibi,
                              const Heads& grads) {
  const Shape shape = shape_of(in, packing, scale, alibi, true);
  const at::Tensor d_rows = d_out.contiguous();
  plan_of(shape).execute(shape, packing,
                         {{kQ, in.q.data_ptr()},
                          {kK, in.k.data_ptr()},
                          {kV, in.v.data_ptr()},
                          {kOut, saved.out.data_ptr()},
                          {kStats, saved.lse.data_ptr()},
                          {kDOut, d_rows.data_ptr()},
                          {kDq, grads.q.data_ptr()},
                          {kDk, grads.k.data_ptr()},
                          {kDv, grads.v.data_ptr()}});
}

}  // namespace reknit::ops::cuda
