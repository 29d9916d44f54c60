// The backend: what `torch.distributed` calls.
#pragma once

#include "cargo.hpp"
#include "communicator.hpp"
#include "device.hpp"
#include "layout.hpp"
#include "types.hpp"
#include "work.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <map>
#include <memory>

namespace rdmaccl {

class Transfers;

// Newer PyTorch has virtuals that older versions do not know; those are written without `override`, so that one source is
// for all. The deprecated names (`_allgather_base`, ...) are overridden: new and old ones forward to them.
class ProcessGroupRdmaccl : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(milliseconds timeout = kBackendDefaultTimeout) : c10d::Backend::Options("rdmaccl", timeout) {}

    c10::intrusive_ptr<c10d::Backend::Options> clone() const;

    // The algorithm of every collective that it can do; empty: the fastest.
    std::string algorithm;
    // What carries data between hosts: `auto`, `ib` or `tcp`; empty: `RDMACCL_NET`.
    std::string transport;
    // Whether the timeout was chosen for this group; else the one that `init_process_group` is given counts.
    bool has_timeout = false;
  };

  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Joins the group; it is shut down at the latest when the program ends.
  static c10::intrusive_ptr<ProcessGroupRdmaccl> create(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      c10::intrusive_ptr<Options> options);
  // Without that last.
  ProcessGroupRdmaccl(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      c10::intrusive_ptr<Options> options);
  ~ProcessGroupRdmaccl() override;

  const std::string getBackendName() const override {
    return "rdmaccl";
  }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() {
    return options_;
  }

  c10::intrusive_ptr<Options> options() const {
    return options_;
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Between these two, calls are gathered, so that they can be waited for as one: transfers are carried side by side then. Collectives of several
  // tensors have calls of their own.
  bool supportsCoalescing() const override {
    return true;
  }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  uint64_t getSequenceNumberForGroup() override;
  void setSequenceNumberForGroup() override {}
  void setTimeout(milliseconds timeout);
  c10d::ErrorType getError();

  bool supportsSplitting() const {
    return true;
  }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts);

  // What `init_process_group(device_id=...)` asks for: the device's queue, before there is a call.
  void eagerConnectSingleDevice(at::Device device);

  void abort();
  void shutdown();
  // What the library says of the host's communicator, as JSON.
  std::string describe() const {
    return communicator_->describe();
  }

 private:
  // What is the same for every call: its name, whether it blocks, how long it may wait, and where it is made. While there is
  // one for a device, this thread is on the stream of its queue.
  struct Call {
    Title title;
    bool is_async;
    milliseconds timeout;
    at::Device device;
    Communicator& communicator;
    std::optional<Stay> stay;

    cclComm_t comm() const {
      return communicator.get();
    }
  };
  template <class Opts>
  Call begin(c10d::OpType type, const char* profiling, const Opts& opts, at::Device device) {
    bool is_async = true;
    // Older versions do not say whether anybody waits.
    if constexpr (requires { opts.asyncOp; }) {
      is_async = opts.asyncOp;
    }
    const Title title{type, profiling};
    const auto timeout = limit(opts.timeout);
    if (device.is_cpu()) [[likely]] {
      return {title, is_async, timeout, device, *communicator_, std::nullopt};
    }
    auto queue = queue_for(device);
    return {
        title, is_async, timeout, device, queue->communicator(), std::optional<Stay>(std::in_place, std::move(queue))};
  }
  // The options' timeout, or the group's if they have none.
  milliseconds limit(milliseconds asked) const {
    return asked.count() > 0 ? asked : timeout_.load(std::memory_order_relaxed);
  }

  // Makes a call: `issue` on this thread, or, if it is asynchronous, on the stream. `after` copies results to where they
  // belong, and owns what the call needs until it is over.
  template <class Outputs, class Issue, class After>
  WorkPtr make(const Call& call, const Tensors& inputs, Outputs&& outputs, Issue issue, After after);
  // The same on a device's stream: it returns when all of it is there. Kept out of the way of calls on host memory.
  template <class Outputs, class Issue, class After>
  [[gnu::noinline]] WorkPtr make_on_device(const Call& call, const Tensors& inputs, const Outputs& outputs, Issue& issue, After& after);
  uint64_t next_sequence() {
    return sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  // A device's queue. The first call for a device makes it: all ranks come to that together, each with a device of its own.
  std::shared_ptr<DeviceQueue> queue_for(at::Device device);
  std::vector<std::shared_ptr<DeviceQueue>> queues() const;
  // Where a barrier is made: where it is asked for, or where the group was bound to, or on the host.
  at::Device barrier_place(const c10d::BarrierOptions& opts) const;

  // A transfer's bytes are those of one tensor.
  template <class Start>
  WorkPtr transfer(const Title& title, Tensors& tensors, Cargo cargo, Start start);
  WorkPtr remember(WorkPtr work);
  // Joins by an id from a store, which rank 0 then forgets.
  void join(Communicator& communicator, c10d::Store& store, const std::string& key, const cclUniqueId& id);
  Settings settings() const;

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<Transfers> transfers_;
  // Held while a device's queue is made.
  std::mutex joining_;
  int queues_made_ = 0;
  // Guards the devices' queues, by the devices' numbers.
  mutable std::mutex devices_;
  bool is_closed_ = false;
  std::map<c10::DeviceIndex, std::shared_ptr<DeviceQueue>> queues_;
  // Names what this group keeps in the store: others before it may have used the same store.
  std::string token_;
  std::atomic<milliseconds> timeout_;
  std::atomic<uint64_t> sequence_ = 0;
  uint64_t monitored_ = 0;
  // Calls since `startCoalescing`.
  std::mutex coalescing_;
  std::atomic<bool> is_coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace rdmaccl
