// The workloads in Boost.Coroutine2 and Boost.Fiber: "boost/<row> <TAB> best <TAB> median", nanoseconds an operation.
// All on one thread, which is what Boost.Fiber does unless asked otherwise. Built and run by Benchmarks/run.
#include "harness.hpp"

#include <boost/coroutine2/all.hpp>
#include <boost/fiber/all.hpp>

namespace fibers = boost::fibers;

static void generator(long n) {
  using Coroutine = boost::coroutines2::coroutine<long>;
  Coroutine::pull_type numbers([n](Coroutine::push_type &give) {
    for (long i = 0; i < n; i++) give(i);
  });
  long sum = 0;
  for (long x : numbers) sum += x;
  expect(sum, n * (n - 1) / 2, "sum of the numbers");
}

static void yield(long n) {
  long turns = 0;
  auto body = [&] {
    for (long i = 0; i < n / 2; i++) {
      turns++;
      boost::this_fiber::yield();
    }
  };
  fibers::fiber one(body), other(body);
  one.join();
  other.join();
  expect(turns, n / 2 * 2, "turns taken");
}

static void pingpong(long n) {
  fibers::unbuffered_channel<long> there, back;
  fibers::fiber echo([&] {
    for (long x; there.pop(x) == fibers::channel_op_status::success;) back.push(x);
  });
  long sum = 0;
  for (long i = 0; i < n; i++) {
    long x = 0;
    there.push(i);
    back.pop(x);
    sum += x;
  }
  there.close();
  echo.join();
  expect(sum, n * (n - 1) / 2, "sum of what came back");
}

static void buffered(long n) {
  fibers::buffered_channel<long> values(128);
  fibers::fiber producer([&] {
    for (long i = 0; i < n; i++) values.push(i);
    values.close();
  });
  long sum = 0;
  for (long x; values.pop(x) == fibers::channel_op_status::success;) sum += x;
  producer.join();
  expect(sum, n * (n - 1) / 2, "sum of what was received");
}

static void spawn_join(long n) {
  long sum = 0;
  for (long i = 0; i < n; i++) fibers::fiber([&sum, i] { sum += i; }).join();
  expect(sum, n * (n - 1) / 2, "sum of the results");
}

static void spawn_join_pooled(long n) {
  fibers::pooled_fixedsize_stack stacks(64 << 10);
  long sum = 0;
  for (long i = 0; i < n; i++)
    fibers::fiber(fibers::launch::dispatch, std::allocator_arg, stacks, [&sum, i] { sum += i; }).join();
  expect(sum, n * (n - 1) / 2, "sum of the results");
}

// A tree of fibers, ten children each, that adds up the numbers of its leaves. A child is entered at once (dispatch):
// left to the queue (post), a million of them stand there with a stack each, and it takes ten times as long.
static long skynet(long number, long size, fibers::pooled_fixedsize_stack &stacks) {
  if (size == 1) return number;
  std::vector<fibers::future<long>> children;
  for (long i = 0; i < 10; i++) {
    fibers::packaged_task<long()> child([=, &stacks] { return skynet(number + i * (size / 10), size / 10, stacks); });
    children.push_back(child.get_future());
    fibers::fiber(fibers::launch::dispatch, std::allocator_arg, stacks, std::move(child)).detach();
  }
  long sum = 0;
  for (auto &child : children) sum += child.get();
  return sum;
}

int main(int count, char **arguments) {
  Options options = Options::parse(count, arguments);
  options.row("generator_next", 5'000'000, generator);
  options.row("yield", 1'000'000, yield);
  options.row("pingpong", 500'000, pingpong);
  options.row("chan_buffered_1p1c", 1'000'000, buffered);
  options.row("spawn_join", 200'000, spawn_join);
  options.row("spawn_join_pooled", 200'000, spawn_join_pooled);
  options.row("skynet_1M", 1, [](long) {
    fibers::pooled_fixedsize_stack stacks(64 << 10);
    expect(skynet(0, 1'000'000, stacks), 499'999'500'000, "sum of the leaves");
  });
}
