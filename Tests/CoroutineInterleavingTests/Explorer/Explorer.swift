internal import CCoroutine
import Coroutine

// Runs a small program of virtual threads in every order that needs at most a given number of preemptions.
//
// A virtual thread is a generator. Every operation on an `Atomic` and every `SpinLock.lock` of this target calls `step`
// first, which decides what thread performs the next operation. A decision costs a stack switch only if it names
// another thread.
//
// Search (iterative context bounding, as in CHESS). An execution is the list of its decisions. The next execution
// repeats that list from the start up to the last decision with an alternative that was not tried, takes the
// alternative, and continues without preemptions. To let another thread run while the present one could continue is a
// preemption. A failure is searched for with no preemption, then with 1, 2 and 3, so the schedule that is printed has
// as few of them as possible.
//
// Fewer decisions. An operation needs a decision only if it can meet another thread's: if more than one thread uses the
// location, and one of them changes it (Sharing). What threads share is learnt from the executions; the search of a
// bound begins anew when one of them has shown more.
//
// What it does not cover. Operations take effect at once and in one order: memory orderings that are weaker than
// sequential consistency are out of scope (ThreadSanitizer and the stress tests look at those), and so are spurious
// failures of a weak compare-and-swap. Fields that are no atomics are not switched at: the locks that guard them are.

/// Explores the executions of one model.
final class Explorer {
  /// The exploration that is under way.
  // Sound because the suites of this target are serialized, and no other target uses it.
  nonisolated(unsafe) static var current: Explorer?
  /// The threads of executions that failed: they stopped where they were, and cannot be ended in an orderly way.
  // Sound for the same reason.
  nonisolated(unsafe) private static var abandoned: [VirtualThread] = []

  let search = UnsafeMutablePointer<Search>.allocate(capacity: 1)
  let sharing = UnsafeMutablePointer<Sharing>.allocate(capacity: 1)
  let fault: Fault?
  private(set) var failure: String?
  private var threads: [VirtualThread] = []
  private var upcoming = Search.none
  private var finalChecks: [() -> Void] = []
  private var isTracing = false
  private var trace: [String] = []
  private let outside = VirtualThread("outside") {}

  private init(_ fault: Fault?) {
    self.fault = fault
    search.initialize(to: Search())
    sharing.initialize(to: Sharing())
  }

  deinit {
    search.pointee.free()
    search.deallocate()
    sharing.pointee.free()
    sharing.deallocate()
  }

  // MARK: For models

  /// Adds a thread to the model.
  func thread(_ name: String, _ body: @escaping () -> Void) {
    precondition(threads.count < Search.mostThreads, "a model has too many threads")
    threads.append(VirtualThread(name, body))
    search.pointee.addThread()
  }

  /// Adds a check that is made after every execution.
  func atEnd(_ check: @escaping () -> Void) { finalChecks.append(check) }

  /// Fails the execution unless `condition` holds.
  func require(_ condition: Bool, _ sentence: @autoclosure () -> String) {
    if condition { return }
    failure = failure ?? sentence()
    let running = search.pointee.running
    if running == Search.none { return }
    // The thread is left where it is.
    upcoming = Search.none
    threads[running].leave()
  }

  /// The thread that runs.
  ///
  /// In set-up and final checks it is a thread that has no other use.
  var runningThread: VirtualThread {
    let running = search.pointee.running
    return running == Search.none ? outside : threads[running]
  }

  // MARK: Steps

  /// The place before an operation on a location: another thread may run first.
  ///
  /// `gate`: a byte that keeps the thread from running while it is not 0.
  @inline(__always)
  func step(_ kind: Operation, _ function: StaticString, _ location: Int, gate: UnsafePointer<UInt8>? = nil) {
    let thread = search.pointee.running
    if thread == Search.none { return }
    if sharing.pointee.notes(location, thread, isChange: kind != .load) { switchAway(from: thread, gate) }
    if isTracing { trace.append("\(threads[thread].name): \(kind) in \(function)") }
  }

  /// Waits until the byte at `gate` is 0.
  ///
  /// If it is 0 already, no other thread needs to run first: it may as well run afterwards.
  /// `mayEnd`: the execution may end meanwhile. Then the result is false, and the thread returns.
  func wait(_ function: StaticString, gate: UnsafePointer<UInt8>, mayEnd: Bool) -> Bool {
    let thread = search.pointee.running
    if gate.pointee == 0 || thread == Search.none { return true }
    if isTracing { trace.append("\(threads[thread].name): waits in \(function)") }
    threads[thread].mayEnd = mayEnd
    switchAway(from: thread, gate)
    threads[thread].mayEnd = false
    return gate.pointee == 0
  }

  /// Waits until a byte of an `Atomic` is 0: stands for a loop of loads.
  func waitUntilZero(_ byte: UnsafePointer<UInt8>, _ function: StaticString = #function) {
    while byte.pointee != 0 { _ = wait(function, gate: byte, mayEnd: false) }
  }

  private func switchAway(from thread: Int, _ gate: UnsafePointer<UInt8>?) {
    search.pointee.gates[thread] = gate
    upcoming = search.pointee.choose()
    if upcoming != thread {
      if isTracing, gate.map({ $0.pointee == 0 }) ?? true { trace.append("  \(threads[thread].name) is preempted") }
      threads[thread].leave()
    }
    search.pointee.gates[thread] = nil
  }

  // MARK: One execution

  private func runOnce(_ model: (Explorer) -> Void) {
    threads = []
    finalChecks = []
    failure = nil
    search.pointee.begin()
    sharing.pointee.begin()
    model(self)
    upcoming = search.pointee.choose()
    while upcoming != Search.none {
      let thread = upcoming
      search.pointee.running = thread
      if threads[thread].run() { continue }
      end(thread)
      upcoming = search.pointee.choose()
    }
    if failure == nil, search.pointee.isTooLong { failure = "the execution does not end" }
    if failure == nil, let stuck = threads.first(where: { !$0.isFinished && !$0.mayEnd }) {
      failure = "deadlock: \(stuck.name) waits for ever"
    }
    if failure == nil { endWaiting() }
    search.pointee.running = Search.none
    if failure == nil { for check in finalChecks { check() } }
    if failure != nil { Self.abandoned += threads }
  }

  private func end(_ thread: Int) {
    threads[thread].isFinished = true
    search.pointee.live &= ~(1 << UInt(thread))
    if isTracing { trace.append("\(threads[thread].name): ends") }
  }

  /// Ends the threads that wait where the execution may end.
  private func endWaiting() {
    for index in threads.indices where !threads[index].isFinished {
      search.pointee.running = index
      threads[index].isFinished = !threads[index].run()
    }
  }

  // MARK: All executions

  private static var sanitizers: UInt32 { CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue }

  /// Runs every schedule with at most `preemptions` preemptions, until one fails.
  static func explore(preemptions: Int? = nil, with fault: Fault? = nil, _ model: (Explorer) -> Void) -> Exploration {
    // A sanitizer makes each schedule ten times slower, and looks for something else. Faults are found early.
    let preemptions = preemptions ?? (cco_compiled_sanitizers() & sanitizers != 0 && fault == nil ? 1 : 3)
    let explorer = Explorer(fault)
    current = explorer
    defer {
      current = nil
      // The checks hold the models' worlds, and these the explorer.
      explorer.finalChecks = []
    }
    // Where no failure is expected, all schedules at once: the lower bounds would repeat a part of them.
    if fault == nil {
      let schedules = explorer.run(upTo: preemptions, model)
      if explorer.failure == nil { return Exploration(schedules: schedules) }
    }
    var schedules = 0
    for bound in 0...preemptions {
      schedules = explorer.run(upTo: bound, model)
      if explorer.failure != nil { return explorer.reportFailure(schedules, model) }
    }
    return Exploration(schedules: schedules)
  }

  /// Runs the schedules with at most `bound` preemptions, until one fails; returns how many it has run.
  private func run(upTo bound: Int, _ model: (Explorer) -> Void) -> Int {
    search.pointee.bound = bound
    var schedules: Int
    // Anew, when an execution has shown that threads share more than was known.
    repeat {
      sharing.pointee.hasGrown = false
      search.pointee.length = 0
      schedules = 0
      repeat {
        runOnce(model)
        schedules += 1
        // A failure that comes with more sharing is found again, by a schedule that can be repeated.
        if sharing.pointee.hasGrown { break }
        if failure != nil { return schedules }
      } while search.pointee.backtrack()
    } while sharing.pointee.hasGrown
    return schedules
  }

  /// Runs the failed schedule again, and writes it down.
  private func reportFailure(_ schedules: Int, _ model: (Explorer) -> Void) -> Exploration {
    let found = failure
    isTracing = true
    runOnce(model)
    let repeated = failure == found ? "" : " (and did not repeat itself: the model is not deterministic)"
    return Exploration(
      schedules: schedules,
      failure: (found ?? "") + repeated,
      preemptions: search.pointee.preemptions,
      trace: trace
    )
  }
}
