#include "ending.hpp"

#include <unistd.h>

#include <future>
#include <thread>

namespace rdmaccl::ending {

namespace {

using Group = c10::intrusive_ptr<ProcessGroupRdmaccl>;
using Clock = std::chrono::steady_clock;

// How long the shutdown of aborted groups may take: only a continuation that does not end takes longer.
constexpr milliseconds kAborted{5000};

struct Enrolled {
  c10::weak_intrusive_ptr<ProcessGroupRdmaccl> group;
  // A process that was forked off has none of its parent's threads, and nothing to wait for.
  pid_t process;
};

std::mutex mutex;
std::vector<Enrolled> all;

std::vector<Group> living() {
  const std::lock_guard lock(mutex);
  std::vector<Group> groups;
  for (const auto& enrolled : all) {
    auto group = enrolled.process == getpid() ? enrolled.group.lock() : Group();
    if (group) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

// On a thread of its own, which is left to itself if it does not end.
std::future<void> begin_shutdown(Group group) {
  std::promise<void> over;
  auto end = over.get_future();
  std::thread([group = std::move(group), over = std::move(over)]() mutable {
    try {
      group->shutdown();
    } catch (...) {
      // It ends with the process.
    }
    over.set_value();
  }).detach();
  return end;
}

}  // namespace

void enroll(const Group& group) {
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& enrolled) { return enrolled.group.expired(); });
  all.push_back({c10::weak_intrusive_ptr<ProcessGroupRdmaccl>(group), getpid()});
}

std::vector<std::string> shut_down_all(milliseconds grace) {
  const auto groups = living();
  std::vector<std::future<void>> ends;
  for (const auto& group : groups) {
    ends.push_back(begin_shutdown(group));
  }
  std::vector<std::string> late;
  const auto limit = Clock::now() + grace;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (ends[i].wait_until(limit) != std::future_status::ready) {
      late.push_back(groups[i]->options()->group_name);
      groups[i]->abort();
    }
  }
  const auto last_limit = Clock::now() + kAborted;
  for (const auto& end : ends) {
    end.wait_until(last_limit);
  }
  return late;
}

}  // namespace rdmaccl::ending
