internal import CLinux
import Glibc
import Synchronization

// Reports that the runtime's own descriptors can be read or written: an epoll instance, and a thread that waits for it.
//
// A descriptor is added once, edge-triggered, in both directions, before the first wait for it. It is removed before it
// is closed (WatchedDescriptor.swift). So a wait makes no system call, and one system call collects a batch of events.
//
//   STARTED --collect, collect, …--> STOPPING (`stop` signals the thread) --> ENDED (the thread releases the poller)
//
// One poller serves the process, on its own thread. The poller does not depend on that thread: any thread may call
// `collect`, one at a time, and the wake-up event ends a `collect` that blocks. A descriptor stays with the poller that
// it was added to.
//
// A forked child has the epoll descriptor, but not the thread. No coroutine runs there, so nothing waits. Only closing
// needs care (WatchedDescriptor.close).

final class Poller: @unchecked Sendable {
  // Sound because its descriptors never change, and `isStopping` is atomic.
  private static let lock = SpinLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var made: Poller?

  /// Returns the poller of the process, which is created and started at the first wait.
  ///
  /// If that fails, a later wait tries again.
  static func shared() throws -> Poller {
    if let made = lock.withLock({ made }) { return made }
    // Started before it is published, so that no wait finds a poller without a thread.
    let mine = try Poller()
    try mine.start()
    // If two threads have created a poller at once, one of the two is stopped.
    let kept = lock.withLock {
      if made == nil { made = mine }
      return made.unsafelyUnwrapped
    }
    if kept !== mine { mine.stop() }
    return kept
  }

  private let epoll: Int32
  private let wakeUpEvent: Int32
  private let isStopping = Atomic<Bool>(false)

  init() throws {
    epoll = clinux_poller()
    guard epoll >= 0 else { throw DescriptorRefusal(code: errno) }
    wakeUpEvent = clinux_eventfd()
    guard wakeUpEvent >= 0 else {
      let code = errno
      close(epoll)
      throw DescriptorRefusal(code: code)
    }
    let code = clinux_ready_watch(epoll, wakeUpEvent, UInt64(WatchTable.noIndex))
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  deinit {
    close(wakeUpEvent)
    close(epoll)
  }

  // MARK: Descriptors

  /// Adds a descriptor, whose events carry the key of `use`; has no effect if it was added before.
  ///
  /// Any thread.
  func watch(_ descriptor: Int32, _ use: WatchTable.Use) throws {
    let code = clinux_ready_watch(epoll, descriptor, use.key)
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  /// Removes a descriptor that is about to be closed.
  ///
  /// Closing is not enough: a copy of the descriptor in another process would keep it in the epoll instance.
  func unwatch(_ descriptor: Int32) { clinux_ready_unwatch(epoll, descriptor) }

  // MARK: Events

  /// Waits for events for at most `milliseconds` (-1: without limit), records them, and wakes the waiters.
  ///
  /// One thread at a time.
  func collect(waiting milliseconds: Int32) {
    let most = 128
    withUnsafeTemporaryAllocation(of: clinux_ready_event.self, capacity: most) { events in
      let events = events.baseAddress.unsafelyUnwrapped
      // A negative count means that a signal handler has interrupted the call.
      let count = clinux_ready_wait(epoll, events, Int32(most), milliseconds)
      for index in 0..<Int(max(0, count)) { happened(events[index].key, events[index].events) }
    }
  }

  private func happened(_ key: UInt64, _ events: UInt32) {
    let (index, generation) = (UInt32(truncatingIfNeeded: key), UInt32(truncatingIfNeeded: key >> 32))
    guard let record = WatchTable.record(index) else { return clinux_eventfd_clear(wakeUpEvent) }
    let gone = CLINUX_POLL_FAILED.rawValue | CLINUX_POLL_HUNG_UP.rawValue
    let inner = CLINUX_POLL_READABLE.rawValue
    let sticks = gone | UInt32(CLINUX_READY_HALF_CLOSED.rawValue) | UInt32(CLINUX_READY_URGENT.rawValue)
    if events & (inner | sticks) != 0 { record.happened(generation, sticks: events & sticks != 0) }
    if events & (CLINUX_POLL_WRITABLE.rawValue | gone) != 0 { (record + 1).happened(generation, sticks: false) }
  }

  /// Makes a `collect` that blocks return; if none blocks, the next one returns at once.
  func wakeUp() { clinux_eventfd_signal(wakeUpEvent) }

  // MARK: Thread

  private static var stackBytes: Int { 256 << 10 }

  /// Starts the thread that collects, detached.
  func start() throws {
    let code = SignalMask.whileBlocked {
      let me = Unmanaged.passRetained(self)
      let code = clinux_start_thread(Self.stackBytes, { Poller.main($0) }, me.toOpaque())
      if code != 0 { me.release() }
      return code
    }
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  /// Makes the thread end and release the poller.
  func stop() {
    isStopping.store(true, ordering: .releasing)
    wakeUp()
  }

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    clinux_name_thread("co-poller")
    let me = Unmanaged<Poller>.fromOpaque(argument)
    me._withUnsafeGuaranteedRef { poller in
      while !poller.isStopping.load(ordering: .acquiring) { poller.collect(waiting: -1) }
    }
    me.release()
    return nil
  }
}
