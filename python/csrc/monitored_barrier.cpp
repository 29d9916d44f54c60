// A barrier by the store alone, which names those that do not come.
#include "errors.hpp"
#include "process_group.hpp"
#include "store.hpp"

#include <sstream>

namespace rdmaccl {

namespace {

std::string listed(const std::vector<int>& ranks) {
  std::ostringstream text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    text << (i == 0 ? "" : ", ") << ranks[i];
  }
  return text.str();
}

std::string arrival(const std::string& round, int rank) {
  return round + "/" + std::to_string(rank);
}

// What rank 0 says of those that are late; the first one, or all of them.
std::string accusation(const std::vector<int>& late, milliseconds timeout, bool all) {
  const auto in_time = " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) + " ms";
  if (all || late.size() == 1) {
    return (late.size() == 1 ? "Rank " : "Ranks ") + listed(late) + in_time;
  }
  return "Rank " + std::to_string(late[0]) + in_time + "; late are ranks " + listed(late);
}

}  // namespace

void ProcessGroupRdmaccl::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // Here zero is a timeout.
  const auto timeout = opts.timeout == c10d::kUnsetTimeout ? timeout_.load() : opts.timeout;
  const Deadline deadline(timeout);
  const auto round = "monitored/" + std::to_string(monitored_++);
  const auto verdict = round + "/verdict";
  const std::string me = "[Rank " + std::to_string(rank_) + "]: ";
  if (rank_ != 0) {
    store_->set(arrival(round, rank_), std::vector<uint8_t>{1});
    if (await(*store_, verdict, deadline) && store_->get(verdict)[0] == 1) {
      return;
    }
    raise(
        me + "Rank " + std::to_string(rank_) +
        " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please "
        "check rank 0 logs for faulty rank.");
  }
  if (deadline.is_over()) {
    raise(me + "Rank 0 timed out in monitoredBarrier after " + std::to_string(timeout.count()) + " ms.");
  }
  std::vector<int> late;
  for (int rank = 1; rank < size_; ++rank) {
    // After the deadline, this only looks.
    if (!await(*store_, arrival(round, rank), deadline)) {
      late.push_back(rank);
    }
  }
  store_->set(verdict, std::vector<uint8_t>{late.empty() ? uint8_t{1} : uint8_t{0}});
  if (!late.empty()) {
    raise(me + accusation(late, timeout, wait_all_ranks));
  }
  for (int rank = 1; rank < size_; ++rank) {
    store_->deleteKey(arrival(round, rank));
  }
}

}  // namespace rdmaccl
