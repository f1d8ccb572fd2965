import Dispatch
import Synchronization

/// Runs coroutines of one scheduler on virtual time, in an order that a seed determines: for tests.
///
/// Time stands still while anything can run. When every job is parked, it jumps to the next timer. If there is no
/// timer, and no work outside (a thread of co_blocking, a Task) is under way, nothing can ever happen: `run` reports
/// the deadlock at once, with a dump.
final class Simulation: Host, @unchecked Sendable {
  // Sound because the scheduler and the clock are used by the thread that runs the simulation; `outside` is atomic and
  // `wakeUp` is a semaphore.

  /// A deadlock: every live coroutine waits for something that cannot happen.
  struct Deadlock: Error, CustomStringConvertible {
    let dump: String
    var description: String { "every coroutine waits and nothing can wake one:\n\(dump)" }
  }

  /// Atomic because a dump on another thread may read it.
  private let time = Atomic<UInt64>(1_000_000_000)
  override var now: UInt64 { time.load(ordering: .relaxed) }
  let seed: UInt64?
  private var random: SplitMix
  private var nextTimer: UInt64?
  private(set) lazy var scheduler = Scheduler(host: self, anchor: nil, pool: nil)
  private let drainWanted = Atomic<Bool>(false)
  private let outside = Atomic<Int>(0)
  private let wakeUp = DispatchSemaphore(value: 0)

  /// Creates a simulation; without a seed the order is first in, first out.
  init(seed: UInt64? = nil) {
    self.seed = seed
    random = SplitMix(state: seed ?? 0)
    super.init(label: "simulation", hasVirtualTime: true, controlsOrder: true)
  }

  /// Runs `body` as a coroutine of the simulation, and everything that it launches, until `body`'s job has ended.
  func run<Success: Sendable>(_ body: @escaping () throws -> Success) throws -> Success {
    let job = Job(
      scheduler: scheduler.forRecord(),
      name: "simulated",
      stack: .standard,
      launchSite: LaunchSite(file: #fileID, line: #line),
      body: body
    )
    job.launch(.queued, on: nil)
    while !job.isFinished {
      // Read before the flag: a thread that ends its outside work has requested a drain before, so that drain is not
      // missed.
      let isBusyOutside = outside.load(ordering: .acquiring) > 0
      if drainWanted.exchange(false, ordering: .acquiringAndReleasing) {
        scheduler.drain()
      } else if let next = nextTimer {
        time.store(max(now, next), ordering: .relaxed)
        nextTimer = nil
        if scheduler.inbox.wakeUp() { drainWanted.store(true, ordering: .releasing) }
      } else if isBusyOutside {
        wakeUp.wait()
      } else {
        throw Deadlock(dump: Dump.text(of: [scheduler]))
      }
    }
    return try job.wait()
  }

  // MARK: Host

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    drainWanted.store(true, ordering: .releasing)
    wakeUp.signal()
    return true
  }

  override func wake(at time: UInt64?, _ anchor: Anchor?) { nextTimer = time }

  override func choose(_ count: Int) -> Int { seed == nil || count < 2 ? 0 : Int(random.next() % UInt64(count)) }

  override func beginOutsideWork() { outside.wrappingAdd(1, ordering: .acquiringAndReleasing) }
  override func endOutsideWork() {
    outside.wrappingSubtract(1, ordering: .acquiringAndReleasing)
    wakeUp.signal()
  }
}

/// A small generator with a full period (Steele, Lea and Flood, 2014), so that a printed seed replays a run.
struct SplitMix: RandomNumberGenerator {
  var state: UInt64
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}
