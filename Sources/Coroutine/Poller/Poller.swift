internal import CCoroutineRuntime
internal import CLinux
import Glibc
import Synchronization

// Reports that descriptors can be read or written: an epoll instance with an owner. The owner is a worker of the pool
// (WorkerHost.swift), or a thread that does nothing else (the last section).
//
// A descriptor of the runtime is added once, edge-triggered, in both directions, before the first wait for it. It is
// removed before it is closed (WatchedDescriptor.swift). So a wait makes no system call, and one system call takes a
// batch of events. A descriptor stays with the poller that it was added to:
//
//   first wait by a coroutine on a worker                     that worker's poller
//   first wait elsewhere, on a queue or on a loop of another   the poller with a thread
//   library; or there was no descriptor for that poller
//
// A descriptor of others is watched by a duplicate, which is the runtime's (ForeignWatch.swift).
//
// An event takes three steps:
//
//   in the kernel --take--> taken by one thread --deliver--> recorded in its word, and the waiters are woken
//
// Who takes events. The owner, and it alone may block for them, in `take`. A worker takes them when it has nothing else
// to do, and while it is busy, without waiting, once in a time slice (`poll`). The watchdog takes events, without
// waiting, for a worker whose current job computes or blocks (`takeForOwner`).
//
// Every event is delivered once. The kernel gives an event to one caller of epoll_wait. The owner keeps taken events in
// `events`, and takes no others before it has delivered these. Other threads deliver at once what they have taken.
//
// The order does not matter. Two threads may deliver events of one descriptor at the same time, or the older one last.
// Each makes the word READY and raises its tick. That is all that the proof in Readiness.swift needs, and so a
// readiness is neither lost nor consumed twice. An event that a thread delivers late, because it was stopped between
// the two steps, is an event that happened late. If the descriptor was closed meanwhile, the generation tells.
//
// The wake-up event ends a `take` that blocks. It is an eventfd, edge-triggered like the descriptors, and no thread
// reads it: a signal makes an event, which stays in the kernel until it is taken. If the watchdog takes it, it signals
// again. So after a signal the owner's present or next `take` returns.
//
// A forked child has the epoll descriptor, but neither workers nor the thread. No coroutine runs there, so nothing
// waits. Closing needs care (WatchedDescriptor.close), and the child must not signal its parent's eventfd.

final class Poller: @unchecked Sendable {
  // Sound because its descriptors never change, `watched` and `isStopping` are atomic, and only the owner accesses
  // `events`, `taken` and `lastTake`.

  /// Not private, because a test replaces it.
  let epoll: Int32
  private let wakeUpEvent: Int32
  /// The number of descriptors that were added.
  let watched = Atomic<Int>(0)
  let isStopping = Atomic<Bool>(false)
  private let events = UnsafeMutablePointer<clinux_ready_event>.allocate(capacity: Poller.most)
  private(set) var taken = 0
  @exclusivity(unchecked) private var lastTake: UInt64 = 0

  private static var most: Int { 128 }
  /// The time between two polls of a busy worker, in ns, however short its drains are.
  private static var interval: UInt64 { Carrier.pollInterval }

  init() throws(DescriptorRefusal) {
    // The deinit, which runs if this throws, closes what there is.
    epoll = clinux_poller()
    let code = errno
    wakeUpEvent = epoll < 0 ? -1 : clinux_eventfd()
    guard wakeUpEvent >= 0 else { throw DescriptorRefusal(code: epoll < 0 ? code : errno) }
    let refusal = clinux_ready_watch(epoll, wakeUpEvent, UInt64(WatchTable.noIndex))
    guard refusal == 0 else { throw DescriptorRefusal(code: refusal) }
  }

  deinit {
    for descriptor in [wakeUpEvent, epoll] where descriptor >= 0 { close(descriptor) }
    events.deallocate()
  }

  // MARK: Descriptors

  /// Adds a descriptor, whose events carry the key of `use`; adding it again repeats the events of what is ready.
  ///
  /// Any thread.
  func watch(_ descriptor: Int32, _ use: WatchTable.Use) throws {
    let code = clinux_ready_watch(epoll, descriptor, use.key)
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  /// Removes a descriptor that is about to be closed.
  ///
  /// Closing is not enough: a copy of the descriptor in another process would keep it in the epoll instance.
  func unwatch(_ descriptor: Int32) {
    clinux_ready_unwatch(epoll, descriptor)
    watched.wrappingSubtract(1, ordering: .relaxed)
  }

  // MARK: Events

  /// Waits for events for at most `nanoseconds` (-1: without limit), and keeps them for `deliver`.
  ///
  /// Returns early after a wake-up. Called by the owner.
  func take(waiting nanoseconds: Int64) {
    let count = clinux_ready_wait(epoll, events, Int32(Self.most), nanoseconds)
    // An interrupted call is a short one. Any other error would come back at once, for ever.
    if count < 0, errno != EINTR {
      misuse("epoll_wait failed (error \(errno)): foreign code has closed descriptors that are not its own")
    }
    taken = Int(max(0, count))
  }

  /// Records the taken events, and wakes their waiters.
  ///
  /// Called by the owner; by a worker in its drain, because the jobs then go to its ready queue without a message.
  func deliver() {
    let count = taken
    taken = 0
    var woken = JobQueue()
    for index in 0..<count { happened(events[index], &woken) }
    Carrier.makeReady(batch: &woken)
  }

  /// Delivers what was taken, or takes and delivers if the last poll was `interval` ago.
  ///
  /// Called by a worker at the beginning of a drain, which has just read the clock.
  func poll(_ now: UInt64) {
    if taken > 0 {
      deliver()
    } else if now &- lastTake >= Self.interval, watched.load(ordering: .relaxed) > 0 {
      take(waiting: 0)
      deliver()
    } else {
      return
    }
    lastTake = now
  }

  /// Takes and delivers events in place of a worker that is busy with one job.
  ///
  /// Called by the watchdog.
  func takeForOwner() {
    guard watched.load(ordering: .relaxed) > 0 else { return }
    withUnsafeTemporaryAllocation(of: clinux_ready_event.self, capacity: Self.most) { events in
      let events = events.baseAddress.unsafelyUnwrapped
      let count = Int(max(0, clinux_ready_wait(epoll, events, Int32(Self.most), 0)))
      var woken = JobQueue()
      // The owner may go to sleep now, or sleep already.
      for index in 0..<count where !happened(events[index], &woken) { wakeUp() }
      Carrier.makeReady(batch: &woken)
    }
  }

  /// Claims the waiters; returns false if it is the wake-up event.
  @discardableResult
  private func happened(_ event: clinux_ready_event, _ woken: inout JobQueue) -> Bool {
    let (index, generation) = (UInt32(truncatingIfNeeded: event.key), UInt32(truncatingIfNeeded: event.key >> 32))
    guard let record = WatchTable.record(index) else { return false }
    let gone = CLINUX_POLL_FAILED.rawValue | CLINUX_POLL_HUNG_UP.rawValue
    let inner = CLINUX_POLL_READABLE.rawValue
    let sticks = gone | UInt32(CLINUX_READY_HALF_CLOSED.rawValue) | UInt32(CLINUX_READY_URGENT.rawValue)
    if event.events & (inner | sticks) != 0 { record.happened(generation, sticks: event.events & sticks != 0, &woken) }
    if event.events & (CLINUX_POLL_WRITABLE.rawValue | gone) != 0 {
      (record + 1).happened(generation, sticks: false, &woken)
    }
    return true
  }

  /// Makes the owner's present or next `take` return.
  ///
  /// Any thread.
  func wakeUp() {
    if cco_forked() == CCO_NOT_FORKED { clinux_eventfd_signal(wakeUpEvent) }
  }
}

// MARK: - The poller with a thread

// The poller of the process for what no worker's poller watches, with a thread.
//
//   STARTED --take, deliver, …--> STOPPING (`stop` signals the thread) --> ENDED (the thread releases the poller)

extension Poller {
  private static let lock = SpinLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var made: Poller?

  /// Returns the poller of the process, which is created and started at the first wait that needs it.
  ///
  /// If that fails, a later wait tries again.
  static func shared() throws(DescriptorRefusal) -> Poller {
    if let made = lock.withLock({ made }) { return made }
    // Started before it is published, so that no wait finds a poller without a thread.
    let mine = try Poller()
    try mine.start()
    // If two threads have created a poller at once, one of the two is stopped.
    let kept = lock.withLock {
      if let made { return made }
      made = mine
      return mine
    }
    if kept !== mine { mine.stop() }
    return kept
  }

  /// The poller for a descriptor that the running coroutine is the first to wait for.
  static func forFirstWait() throws -> Poller {
    if let worker = Carrier.current?.pointee.scheduler,
      let own = worker._withUnsafeGuaranteedRef({ $0.pollerOfWorker() })
    {
      return own
    }
    return try shared()
  }

  /// Starts the thread that owns the poller, and holds it until it ends.
  private func start() throws(DescriptorRefusal) {
    let code = DetachedThread.start("co-poller") { [self] in
      while !isStopping.load(ordering: .acquiring) {
        take(waiting: -1)
        deliver()
      }
    }
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  /// Makes the thread end and release the poller.
  private func stop() {
    isStopping.store(true, ordering: .releasing)
    wakeUp()
  }
}
