internal import CLinux
import Glibc
import Synchronization

// What tells the runtime that its own descriptors can be read or written: an epoll instance, and whoever waits at it.
//
// A descriptor is added once, edge-triggered, in both directions, before the first wait for it, and removed before it
// is closed (WatchedDescriptor.swift). So a wait makes no system call, and a wake-up one for all events of a batch.
//
//   STARTED --collect, collect, …--> STOPPING (`stop`: the bell rings) --> ENDED: the thread lets go of the poller
//
// For now one poller serves the process, on a thread of its own which does nothing else. The poller itself does not
// know that thread: `collect` may be called by any one thread at a time, and the bell ends a `collect` that blocks. A
// descriptor keeps the poller that it was added to.
//
// A forked child has the epoll descriptor and not the thread. No coroutine runs there, so nothing waits; only closing
// must take care (WatchedDescriptor.close).

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
    // Two threads may have created one at once: the poller that is not kept ends.
    let kept = lock.withLock {
      if made == nil { made = mine }
      return made.unsafelyUnwrapped
    }
    if kept !== mine { mine.stop() }
    return kept
  }

  private let epoll: Int32
  private let bell: Int32
  private let isStopping = Atomic<Bool>(false)

  init() throws {
    epoll = clinux_poller()
    guard epoll >= 0 else { throw DescriptorRefusal(code: errno) }
    bell = clinux_bell()
    guard bell >= 0 else {
      let code = errno
      close(epoll)
      throw DescriptorRefusal(code: code)
    }
    let code = clinux_ready_watch(epoll, bell, UInt64(WatchTable.noIndex))
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  deinit {
    close(bell)
    close(epoll)
  }

  // MARK: Descriptors

  /// Adds a descriptor; its events carry the key of `use`.
  ///
  /// Any thread; also if it was added before.
  func watch(_ descriptor: Int32, _ use: WatchTable.Use) throws {
    let code = clinux_ready_watch(epoll, descriptor, use.key)
    guard code == 0 else { throw DescriptorRefusal(code: code) }
  }

  /// Removes a descriptor that is about to be closed: a copy of it in another process would keep it in the epoll.
  func unwatch(_ descriptor: Int32) { clinux_ready_unwatch(epoll, descriptor) }

  // MARK: Events

  /// Waits for events, for at most `milliseconds` (-1: without end), notes them, and wakes the waiters.
  ///
  /// One thread at a time.
  func collect(waiting milliseconds: Int32) {
    let most = 128
    withUnsafeTemporaryAllocation(of: clinux_ready_event.self, capacity: most) { events in
      let events = events.baseAddress.unsafelyUnwrapped
      // A signal's handler has interrupted it if it is negative.
      let count = clinux_ready_wait(epoll, events, Int32(most), milliseconds)
      for index in 0..<Int(max(0, count)) { happened(events[index].key, events[index].events) }
    }
  }

  private func happened(_ key: UInt64, _ events: UInt32) {
    let (index, generation) = (UInt32(truncatingIfNeeded: key), UInt32(truncatingIfNeeded: key >> 32))
    guard let record = WatchTable.record(index) else { return clinux_silence(bell) }
    let gone = CLINUX_POLL_FAILED.rawValue | CLINUX_POLL_HUNG_UP.rawValue
    let inner = CLINUX_POLL_READABLE.rawValue
    let sticks = gone | UInt32(CLINUX_READY_HALF_CLOSED.rawValue) | UInt32(CLINUX_READY_URGENT.rawValue)
    if events & (inner | sticks) != 0 { record.happened(generation, sticks: events & sticks != 0) }
    if events & (CLINUX_POLL_WRITABLE.rawValue | gone) != 0 { (record + 1).happened(generation, sticks: false) }
  }

  /// Ends a `collect` that blocks, or else the next one.
  func ring() { clinux_ring(bell) }

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

  /// Makes the thread end and let go of the poller.
  func stop() {
    isStopping.store(true, ordering: .releasing)
    ring()
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
