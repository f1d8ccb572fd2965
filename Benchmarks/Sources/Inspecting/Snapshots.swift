import Coroutine
import Glibc
import Harness

/// A snapshot with the stacks of many coroutines, which all wait: the time, and the memory of its values.
func measureStacks(_ count: Int, _ name: String) throws {
  let gate = Promise<Void>()
  park(count, at: gate)
  // The first one, before there is freed memory that is used again.
  report(name + "_memory", Double(peakOf { precondition(CoroutineRuntime.snapshot(stacks: true).isOf(count)) }) / 1e6)
  var best = Double.infinity
  for _ in 0..<5 {
    let start = seconds()
    let snapshot = CoroutineRuntime.snapshot(stacks: true)
    best = min(best, seconds() - start)
    precondition(snapshot.isOf(count))
  }
  report(name, best)
  report(name + "_frames", Double(CoroutineRuntime.snapshot(stacks: true).coroutines[0].stack.count))
  let start = seconds()
  let text = CoroutineRuntime.dump(.stacks)
  report(name + "_dump", seconds() - start)
  precondition(text.contains("\(count) waiting for a promise"))
}

extension CoroutineRuntime.Snapshot {
  /// Whether it has the whole stacks of `count` coroutines.
  fileprivate func isOf(_ count: Int) -> Bool {
    coroutines.count == count && coroutines.allSatisfy { $0.stack.count >= 18 }
  }
}

/// By how many bytes the resident memory grows at most while `body` runs.
private func peakOf(_ body: () -> Void) -> Int {
  let before = Memory.current.resident
  // Resets VmHWM to what is resident now.
  if let file = fopen("/proc/self/clear_refs", "w") {
    fputs("5", file)
    fclose(file)
  }
  body()
  let line = lines(of: "/proc/self/status").first { $0.hasPrefix("VmHWM:") } ?? ""
  let kilobytes = line.split(whereSeparator: { $0 == " " || $0 == "\t" }).dropFirst().first.flatMap { Int($0) } ?? 0
  return kilobytes << 10 - before
}

/// The share of stacks that could not be read, while 20,000 waiters are woken all the time.
func measureTorn() throws {
  let channels = (0..<20_000).map { _ in Channel<Int>(1) }
  for channel in channels { co_launch(name: "waiter") { while true { _ = try channel.receive() } } }
  co_launch(name: "waker") { while true { for channel in channels { try channel.send(1) } } }
  let (end, switches) = (seconds() + 8, CoroutineRuntime.metrics.switches)
  var (stacks, torn, snapshots) = (0, 0, 0)
  while seconds() < end {
    snapshots += 1
    for entry in CoroutineRuntime.snapshot(stacks: true).coroutines where entry.name == "waiter" {
      if entry.isTorn { torn += 1 } else if !entry.stack.isEmpty { stacks += 1 }
    }
  }
  report("torn_switches", Double(CoroutineRuntime.metrics.switches - switches))
  report("torn_snapshots", Double(snapshots))
  report("torn_stacks", Double(stacks))
  report("torn", 100 * Double(torn) / Double(max(1, stacks + torn)))
}

/// One reading of the metrics, and what each live coroutine adds.
func measureMetrics() throws {
  let gate = Promise<Void>()
  park(10, at: gate)
  func time(_ count: Int) -> Double {
    var best = Double.infinity
    for _ in 0..<5 {
      let start = seconds()
      for _ in 0..<count { _ = CoroutineRuntime.metrics }
      best = min(best, (seconds() - start) / Double(count))
    }
    return best
  }
  let few = time(2_000)
  report("metrics", few * 1e6)
  for _ in 0..<100_000 { co_launch { try co_await(gate) } }
  while CoroutineRuntime.metrics.waiting["promise"] != 100_010 { usleep(10_000) }
  report("metrics_each", (time(5) - few) / 100_000 * 1e9)
}

/// 10,000 parked coroutines, until the process is killed; run-inspect reads its core.
func parkForDebugger() throws {
  park(10_000, at: Promise<Void>())
  print("pid \(getpid())")
  fflush(nil)
  while true { pause() }
}
