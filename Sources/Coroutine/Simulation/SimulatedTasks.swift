internal import CCoroutine
internal import CCoroutineRuntime
import Dispatch

// The Tasks of a world whose program is async from end to end. The product CoroutineTesting has what that needs of
// Swift's runtime, which belongs into no other program. The world asks it where it asks its executors:
//
//   gather      continues what only enqueues a Task
//   takeNext    a Task that wants to change its executor (`hopping`) is the running one: to let it go on is answer 0,
//               and another answer is a preemption, as at a coroutine's point
//   passTime    `nextTimer` and `fireTimers`, beside those of the schedulers
//   close       cancels what has not ended
//
// A step of a Task is a candidate of the worker pool's executor. It runs outside of every coroutine.

/// The Tasks of a world.
package protocol SimulatedTasks: AnyObject {
  /// The Task that has just been suspended because it wants to continue on another executor.
  var hopping: SimulatedTask? { get set }
  /// How often time may still pass although something can run, as on a machine that is busy with something else.
  var lateLeft: Int { get set }
  /// Called before each choice; may add candidates.
  func gather()
  /// The world's time at which the first timer is due; `.max` without timers.
  var nextTimer: UInt64 { get }
  /// Adds what waits for timers that are due as candidates.
  func fireTimers(_ now: UInt64)
  /// Whether a Task has not ended.
  var hasLive: Bool { get }
  /// Cancels the Tasks that have not ended.
  func cancelAll()
  /// Ends a step, of a Task or of something else; called before its footprints are read.
  func endStep()
  /// Releases all Tasks that have ended, and returns whether there were any: what they hold may be waited for.
  func forgetEnded() -> Bool
  /// Whether timers that are due have been held back for long enough.
  var mustFire: Bool { get }
  /// Adds what a step has done to Tasks to the world's footprints; called after each step if there are any.
  func stepFinished(_ id: UInt64)
  /// The Tasks that have not ended, one in a line, and what each does.
  var dump: String { get }

  /// Runs the job of a Task until it suspends.
  func run(_ task: SimulatedTask)
  /// What a Task is, for reports: "Task 3".
  func title(of task: SimulatedTask) -> String
  /// The name that the program has given a Task.
  func name(of task: SimulatedTask) -> String?
  /// Where a Task was created, as far as its stack says.
  func site(of task: SimulatedTask) -> String
  /// How the last step of a Task has ended, for the table of a failing run.
  func end(of task: SimulatedTask) -> String
}

/// A Task, or another job of Swift's runtime, as a candidate of a world.
///
/// It is in at most one place at a time, as its job is. Its owner holds it until the world has ended.
package final class SimulatedTask {
  fileprivate static let function: WorkItem.Function = { item in
    let task: Unmanaged<SimulatedTask> = object(holding: UnsafeRawPointer(item), at: 0)
    task._withUnsafeGuaranteedRef { $0.owner.run($0) }
  }
  @exclusivity(unchecked) private var storage = WorkItem(SimulatedTask.function)
  /// The number among the world's candidates; see `Candidate.isTask`.
  package let id: UInt64
  /// Swift's own number of the Task, unique in the process; 0 for other jobs.
  package let key: UInt64
  package unowned(unsafe) let owner: any SimulatedTasks
  /// Swift's own object, while the candidate is one.
  @exclusivity(unchecked) package var job: UnsafeMutableRawPointer
  @exclusivity(unchecked) package var isMain = false
  /// The owner's: where it is among those that are held; -1 if it is not held.
  @exclusivity(unchecked) package var index = -1
  /// The owner's: whether its step is to join the queue of the main actor.
  @exclusivity(unchecked) package var isArriving = false
  /// Where a Task that has hopped wants to continue; nil if its job runs as it is.
  @exclusivity(unchecked) package var target: (identity: UnsafeMutableRawPointer?, implementation: UInt)?

  package init(_ owner: any SimulatedTasks, _ job: UnsafeMutableRawPointer, id: UInt64, key: UInt64) {
    self.key = key
    self.owner = owner
    self.job = job
    self.id = id
    checkAddress(item, of: &storage)
  }

  private var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  fileprivate func candidate(_ executor: SimulatedExecutor) -> Candidate {
    Candidate(.work(item), id: id, executor, isHead: false)
  }
}

extension Candidate {
  /// Numbers of Tasks begin here; those of coroutines are smaller, those of handlers larger.
  package static var firstTask: UInt64 { 1 << 62 }
  /// Whether a number is one of a Task.
  package static func isTask(_ id: UInt64) -> Bool { id >= firstTask && id < noJob }

  /// The Task or job of Swift's that the candidate is; nil for others.
  ///
  /// By the number first: the item of a handler is gone once it has run. A Task's lives as long as its world.
  var task: SimulatedTask? {
    guard id & Self.firstTask != 0, case .work(let item) = Inbox.decode(word),
      item.isRun(by: SimulatedTask.function)
    else { return nil }
    let task: Unmanaged<SimulatedTask> = object(holding: UnsafeRawPointer(item), at: 0)
    return task.takeUnretainedValue()
  }
}

extension SimulatedWorld {
  /// Lists a Task that can take its next step on an executor.
  package func add(_ task: SimulatedTask, on executor: UnsafeMutableRawPointer?) {
    footprints?.arrive(task, on: executor)
    candidates.append(task.candidate(self.executor(of: nil)))
  }

  /// Says on which executor the Task that hops continues.
  package func hops(_ task: SimulatedTask, to executor: UnsafeMutableRawPointer?) {
    footprints?.arrive(task, on: executor)
  }

  /// Returns the next candidate, where the last step has ended because its Task changes its executor.
  func takeHopping() -> Candidate? {
    guard let task = tasks?.hopping else { return nil }
    tasks?.hopping = nil
    candidates.prepend(task.candidate(executor(of: nil)))
    if candidates.count == 1 || isEnding { return candidates.remove(at: 0) }
    let index = candidates.withWindow { policy.chooseNext($0, continues: true, previous: task.id) }
    return candidates.remove(at: index)
  }

  /// For how long, in nanoseconds, a Task that can run may have to wait for a processor.
  private static var mostLate: UInt64 { 100_000_000 }

  /// Lets time pass although something can run, if the policy chooses that.
  func passesTimeLate() -> Bool {
    guard let tasks = tasks, tasks.lateLeft > 0, let next = nextTimer, next <= now &+ Self.mostLate,
      !candidates.isEmpty || tasks.hopping != nil, policy.chooseLate()
    else { return false }
    tasks.lateLeft -= 1
    return passTime()
  }

  /// Whether the policy lets what can run go before the next timer of the same instant.
  package func delaysTimer() -> Bool {
    guard !isEnding, let tasks, tasks.lateLeft > 0, !candidates.isEmpty, policy.chooseLate() else { return false }
    tasks.lateLeft -= 1
    return true
  }

  /// Runs Tasks that `begin` creates, and all that they begin, on the calling thread, until none is left.
  ///
  /// Called once, in the place of `run`. The Tasks that have not ended after `isOver` are cancelled; those that have
  /// not ended then are the caller's to find. `outcome` throws the body's error.
  package func runTasks(_ begin: () -> Void, until isOver: () -> Bool, outcome: () throws -> Void) throws {
    try driven {
      mount(executor(of: nil))
      cco_layer().pointee.locals = nil
      begin()
      var failure: (any Error)?
      do {
        try drive(until: isOver)
        settleLeftovers()
        if hasLiveCoroutines { failure = policy.leftRunning(dump) }
      } catch {
        failure = error
      }
      if isTraced { endDump = dump }
      close()
      var own: (any Error)?
      // After a failure of the world the body was cancelled, and its error says nothing.
      if failure == nil { do { try outcome() } catch { own = error } }
      if let found = finding ?? own ?? unhandled ?? failure { throw found }
    }
  }
}

// MARK: - What CoroutineTesting asks

extension SimulatedWorld {
  /// The Task or job of Swift's that takes the current step.
  package var runningTask: SimulatedTask? {
    if case .running(let run) = step { run.candidate.task } else { nil }
  }

  /// Whether a coroutine takes the current step that has declared its waits.
  package var stepIsOutside: Bool {
    guard hasDeclared, case .running(let run) = step, let job = run.candidate.job else { return false }
    return isOutside(job)
  }

  /// Ends a wait of the world for the outside; any thread.
  package func noteFromOutside() { wakeUp.signal() }

  /// Whether the identity of a serial executor is one of a scheduler.
  // Sound because the identity of a serial executor that is no default actor's is its object.
  package static func isOfCoroutines(_ identity: UnsafeMutableRawPointer) -> Bool {
    Unmanaged<AnyObject>.fromOpaque(identity).takeUnretainedValue() is SerialIdentity
  }
}

extension TaskContext {
  /// The name that a Task was given; the Task must not have ended.
  package static func name(of task: UnsafeMutableRawPointer) -> String? {
    TaskContext(task: task).inherit { Task<Never, Never>.name }
  }
}

extension SimulatedWorld {
  /// The first function of the program, or of a library that is not Swift's own, that one of the addresses lies in; nil
  /// if it is one of this library.
  package static func function(at addresses: [UInt]) -> String? {
    let named = Symbols.named(addresses).first {
      $0.owner == .program && $0.frame.symbol != nil && !($0.frame.image ?? "").contains("/libswift_Concurrency")
    }
    guard let symbol = named?.frame.symbol, !symbol.contains(" CoroutineTesting.") else { return nil }
    // "(2) suspend resume partial function for f() async"
    return symbol.firstRange(of: " partial function for ").map { String(symbol[$0.upperBound...]) } ?? symbol
  }
}
