import CCoroutine
import Dispatch
import Synchronization

// One thread that drives every coroutine of a test: in virtual time, in an order that a policy chooses.
//
// A world has an executor for each queue that its coroutines name, and one for the worker pool. An executor has an
// ordinary scheduler whose host is the world. No drain runs: the world's loop takes one step of one coroutine at a
// time.
//
//   gather      lists the jobs, Swift jobs and handlers that became ready since the last step as candidates
//   takeNext    the policy names a candidate, if there are several
//   perform     the candidate runs until it waits, yields or ends, or until a point at which another one is chosen
//   passTime    without candidates, the clock moves to the next timer
//
// Invariants
//  1. A step is atomic: only the thread in `run` resumes coroutines of the world, one at a time.
//  2. Every difference between two runs of one program is a choice of the policy. Candidates are listed in an order
//     that depends on earlier choices only: executors in the order of their creation, jobs in the order of their
//     wake-ups.
//  3. A job is in at most one of: `candidates`, an executor's `waiting`, its scheduler's ready queue, the inbox. The
//     one exception is a coroutine that leaves its stack at a point (SimulatedWorld+Step.swift).
//  4. A serial executor has at most one candidate that has not begun or has parked, because its queue runs first in,
//     first out. The other jobs of the queue may overtake a coroutine that is about to wait, as in production
//     (Carrier.giveWayIfOverdue). They cannot overtake one that is at a co_point.
//  5. Candidate 0 runs if there is no policy. It is the running coroutine at a point, otherwise the candidate that has
//     been ready longest. So a run whose choices are all 0 has the order "first in, first out".
//
// Waits that no coroutine of the world can end. The world cannot see a callback of a real thread. `outside` lists the
// coroutines that have declared such a wait. Only for these the loop blocks its thread. Any other wait that nothing can
// end is a deadlock, which is reported at once.
//
// Tasks that co_await starts. Their Swift jobs are candidates, as handlers are. A Task may wait for something outside,
// for example for a sleep of Swift's. The world detects that in one of two ways: nothing else can run, or a real thread
// resumes the Task. Both are a World.RealWaitError.

package final class SimulatedWorld: @unchecked Sendable {
  // Sound because the driving thread alone uses everything mutable, except `time` and
  // `hasSwiftJobFromOutside`, which are atomic, and `wakeUp`, a semaphore. Exclusivity is not checked, because the
  // checks were a sixth of a search's time.

  let policy: any WorldPolicy
  /// The owner of the world, which `World.current` returns.
  ///
  /// Unowned, because the owner holds the world.
  package unowned(unsafe) let owner: AnyObject
  private let seed: UInt64
  /// Atomic because a dump on another thread may read it.
  let time = Atomic<UInt64>(SimulatedWorld.start)
  let wakeUp = DispatchSemaphore(value: 0)
  /// Whether a thread outside of the world has resumed a Task of the world.
  let hasSwiftJobFromOutside = Atomic<Bool>(false)

  @exclusivity(unchecked) var executors: [SimulatedExecutor] = []
  @exclusivity(unchecked) var executorsByQueue: [ObjectIdentifier: SimulatedExecutor] = [:]
  @exclusivity(unchecked) var candidates = CandidateList()
  @exclusivity(unchecked) private var lastID: UInt64 = 0
  /// The number of listed arrivals of coroutines that change their queue (Arrival.swift).
  @exclusivity(unchecked) var arrivals = 0
  /// The objects that the coroutines touch; nil if the policy does not need them.
  @exclusivity(unchecked) package var footprints: Footprints?

  /// The flow of control that runs, or ran last.
  @exclusivity(unchecked) var step = Step.idle(previous: nil)
  /// Whether the body has ended or the run has failed: what is left runs in order, without asking the policy.
  @exclusivity(unchecked) var isEnding = false
  /// The number of steps.
  @exclusivity(unchecked) package var steps = 0
  /// The number of steps at the moment when time passed last.
  @exclusivity(unchecked) var stepsBefore = 0
  /// The largest number of steps while no time passes.
  ///
  /// More steps mean an endless loop.
  @exclusivity(unchecked) package var mostSteps = 10_000_000
  /// The largest time, in nanoseconds of the world, before the body must have ended.
  @exclusivity(unchecked) package var timeLimit = UInt64.max

  /// The coroutines that wait in `settle`.
  @exclusivity(unchecked) var settling = WaitQueue()
  let settlingLock = SpinLock()
  /// The coroutines that have declared waits for the real world, and the depth of their declarations.
  @exclusivity(unchecked) var outside: [JobRef: Int] = [:]
  /// The first error that the world has found; the code under test may have caught it.
  @exclusivity(unchecked) private(set) var finding: (any Error)?
  /// Whether `stepEnded` is called, and `endDump` is stored.
  @exclusivity(unchecked) package var isTraced = false
  /// The dump of the live coroutines when the run had ended or failed, before they were cancelled.
  package var endDump = ""

  package init(owner: AnyObject, policy: any WorldPolicy, seed: UInt64) {
    ForkedChild.noteUse()
    self.owner = owner
    self.policy = policy
    self.seed = seed
  }

  /// The network of the world; an object of CoroutineTesting, opaque to the runtime.
  package var network: AnyObject?

  /// Returns the clock of the running code's host; nil if every host has the world's clock.
  @exclusivity(unchecked) package var clockOfCaller: (() -> LocalClock?)?

  /// The network of the calling code's world; nil outside, and for a coroutine that has declared real waits.
  package static var currentNetwork: AnyObject? {
    guard cco_has_worlds(), let world = current else { return nil }
    if let job = Carrier.current?.pointee.job, world.isOutside(job) { return nil }
    return world.network
  }

  /// The world of the calling code, nil outside.
  package static var current: SimulatedWorld? {
    guard let scheduler = Carrier.current?.pointee.scheduler else { return nil }
    return scheduler._withUnsafeGuaranteedRef { ($0.host as? SimulatedHost)?.world }
  }

  // MARK: Executors

  /// The executor of `queue`; without a queue, of the worker pool.
  func executor(of queue: DispatchQueue?) -> SimulatedExecutor {
    guard let queue else { return executors.isEmpty ? addExecutor(nil) : executors[0] }
    if let found = executorsByQueue[ObjectIdentifier(queue)] { return found }
    let made = addExecutor(queue)
    executorsByQueue[ObjectIdentifier(queue)] = made
    return made
  }

  private func addExecutor(_ queue: DispatchQueue?) -> SimulatedExecutor {
    let executor = SimulatedExecutor(self, queue, index: executors.count, seed: seed)
    executors.append(executor)
    return executor
  }

  func takeID() -> UInt64 {
    lastID += 1
    return lastID
  }

  func mount(_ executor: SimulatedExecutor) {
    cco_thread().pointee.carrier = UnsafeMutableRawPointer(executor.carrier)
  }

  // MARK: For policies and reports

  var hasLive: Bool { executors.contains { $0.scheduler.liveJobs > 0 } }
  var dump: String { Dump.text(of: executors.map(\.scheduler)) }
  package var currentDump: String { dump }

  /// Returns an index below `count` that the policy chooses; 0 while the world ends.
  package func choose(_ count: Int) -> Int { isEnding || count < 2 ? 0 : policy.choose(count) }

  /// Makes the run fail with `error`, unless the run has failed before.
  package func fail(_ error: any Error) { if finding == nil, !isEnding { finding = error } }
}
