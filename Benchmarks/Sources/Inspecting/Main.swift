import Coroutine
import Glibc
import Harness

// What it costs to look into a running program: `inspecting ROW` runs one row, in a process of its own, and prints
// `NAME <TAB> VALUE` for each number. Benchmarks/run-inspect runs all rows and compares them with bars-inspect.tsv.

@main
struct Inspecting {
  static let rows: [(name: String, run: @Sendable () throws -> Void)] = [
    ("stacks_100k", { try measureStacks(100_000, "stacks_100k") }),
    ("stacks_1m", { try measureStacks(1_000_000, "stacks_1m") }),
    ("torn", measureTorn),
    ("metrics", measureMetrics),
    ("recorder", measureRecorder),
    ("hogs", measureHogs),
    ("circles", measureCircles),
    ("parked_for_gdb", parkForDebugger),
  ]

  static func main() throws {
    let asked = CommandLine.arguments.dropFirst().first
    guard let row = rows.first(where: { $0.name == asked }) else {
      print("usage: inspecting ROW: \(rows.map(\.name).joined(separator: " "))")
      exit(2)
    }
    try row.run()
    exit(0)
  }
}

func report(_ name: String, _ value: Double) {
  print("\(name)\t\(value)")
  fflush(nil)
}

func seconds(_ clock: clockid_t = CLOCK_MONOTONIC) -> Double {
  var time = timespec()
  clock_gettime(clock, &time)
  return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
}

/// Waits in `depth` frames of its own.
@inline(never)
func recurse(_ depth: Int, _ gate: Promise<Void>) throws -> Int {
  if depth == 0 {
    try co_await(gate)
    return 1
  }
  return try recurse(depth - 1, gate) &+ 1
}

/// Launches `count` coroutines that wait at the gate in 20 frames, and returns when all wait.
func park(_ count: Int, at gate: Promise<Void>) {
  for _ in 0..<count { co_launch(name: "parked") { _ = try recurse(17, gate) } }
  while CoroutineRuntime.metrics.waiting["promise"] != count { usleep(10_000) }
}
