import Synchronization

// The handlers (then, finally, tap ...) that are bound to one lane of the shared scheduler: first in, first out, one at a time.
//
// As a rule the drain of the lane runs them. Where a job keeps that lane for long, the watchdog asks a lane that has nothing to
// do to run them in its place (Watchdog.swift). Handlers are not moved: the whole queue changes its runner. So there is one order,
// that of appending, and one handler of the queue at a time, whoever runs it.
//
//            append                        run                        the last has returned
//   EMPTY ------------> READY ----------------------------> RUNNING ------------------------> EMPTY
//                         ^                                    |
//                         +--- there are more than it took on -+
//
// `isReady` is true in READY only. Everything changes under `lock`; no handler runs under it.
//
// One runner. `run` goes on only in READY, and leaves it, under the lock: of a drain and its helper one gets in.
//
// No handler is left behind. Whoever brings the queue to READY sees to it that the lane's drain looks: on the lane's own turn it
// is the drain that looks before it goes idle; from elsewhere it sends the drain a tick (Alarm.swift), after `isReady` is set. In
// READY that has been done by whoever brought it there; in RUNNING the runner looks once more before it leaves, and if it is not
// the lane's own drain it sends the tick.
//
// The order of registration. The handlers that coroutines of the shared scheduler attach to one promise or job go to one lane,
// that of the first (Completion.laneOfHandlers): a coroutine may be on another lane when it attaches the next one. They are sent in
// the order of attaching (Completion.swift), so they are appended, and run, in that order.
//
// A lane lives for ever, so what waits here holds neither the scheduler nor its queue.

final class HandlerQueue: @unchecked Sendable {
  // Sound because everything mutable is under `lock`, and `isReady` is atomic.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  private let ready = Atomic<Bool>(false)

  init() {}

  /// Whether there are handlers that nobody runs: one plain load.
  var isReady: Bool { ready.load(ordering: .relaxed) }

  /// Returns whether that has made the queue ready, so that the lane's drain must look.
  func append(_ message: Inbox.Message) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    waiting.append(message)
    if isRunning || isReady { return false }
    ready.store(true, ordering: .relaxed)
    return true
  }

  /// Runs the handlers that are there now, unless somebody does; returns how many, and whether there are more by then.
  ///
  /// Those that come meanwhile wait for the runner's next look at its clock.
  func run() -> (count: Int, isReady: Bool) {
    lock.lock()
    guard !isRunning, !waiting.isEmpty else {
      lock.unlock()
      return (0, false)
    }
    isRunning = true
    ready.store(false, ordering: .relaxed)
    let count = waiting.count
    for _ in 0..<count {
      let next = waiting.popFirst()
      lock.unlock()
      switch next {
      case .work(let item): item.takeRetainedValue().run()
      case .handler(let promise): AnyPromise.runHandler(promise)
      default: break
      }
      lock.lock()
    }
    isRunning = false
    let hasMore = !waiting.isEmpty
    ready.store(hasMore, ordering: .relaxed)
    lock.unlock()
    return (count, hasMore)
  }

  /// What a watchdog compares: the first handler, if nobody runs any.
  var next: UInt { lock.withLock { isRunning ? 0 : waiting.next } }
}

/// Asks a lane to run the handlers of another one, whose drain does not get to them.
private final class HandlerHelp: WorkItem, @unchecked Sendable {
  // Sound because `lane` is set once.
  private let lane: Scheduler

  init(for lane: Scheduler) { self.lane = lane }

  override func run() {
    if lane.runHandlers().isReady { lane.sendTick() }
  }
}

extension Scheduler {
  /// Whether handlers of this lane wait for somebody to run them.
  var hasReadyHandlers: Bool { handlers?._withUnsafeGuaranteedRef { $0.isReady } ?? false }

  /// Runs the handlers of this lane that are there now, on its own drain or on its helper's.
  func runHandlers() -> (count: Int, isReady: Bool) {
    handlers?._withUnsafeGuaranteedRef { $0.run() } ?? (0, false)
  }

  /// What a watchdog compares: the first handler, if nobody runs any; 0: none.
  var nextHandler: UInt { hasReadyHandlers ? handlers.unsafelyUnwrapped._withUnsafeGuaranteedRef { $0.next } : 0 }

  /// Sends a handler to a lane, from anywhere.
  func sendToLane(_ message: Inbox.Message, _ handlers: Unmanaged<HandlerQueue>) {
    let mustLook = handlers._withUnsafeGuaranteedRef { $0.append(message) }
    if mustLook, !isOwnTurn { sendTick() }
  }

  /// Has `helper` run this lane's handlers.
  ///
  /// A request for each look of the watchdog: a helper that has become busy itself does not keep others from helping.
  func askForHelp(of helper: Scheduler) {
    helper.push(.work(Unmanaged.passRetained(HandlerHelp(for: self))))
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// The lane that runs the handlers which coroutines on lanes attach: that of the first of them.
  ///
  /// Under the lock. `lane`: the attaching coroutine's.
  func laneOfHandlers(_ lane: Unmanaged<Scheduler>) -> Unmanaged<Scheduler> {
    lane._withUnsafeGuaranteedRef { scheduler in
      let mine = scheduler.index
      if pointee.handlerLane == Completion.noLane { pointee.handlerLane = mine }
      if pointee.handlerLane == mine { return lane }
      let group = scheduler.lane.pointee.group.unsafelyUnwrapped
      return group._withUnsafeGuaranteedRef { group in
        // A number from another group, as tests have them, may be beyond this one's.
        let index = Int(pointee.handlerLane) % group.lanes.count
        return Unmanaged.passUnretained(group.lanes[index])
      }
    }
  }
}
