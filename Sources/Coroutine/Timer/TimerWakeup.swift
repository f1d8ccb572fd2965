import Synchronization

/// The message that makes a scheduler's drain read the clock.
final class TimerWakeup: @unchecked Sendable {
  // Sound because only the inbox that holds the item accesses it, and the other fields are atomic.
  @exclusivity(unchecked) private var storage = WorkItem { _ in }
  let isPending = Atomic<Bool>(false)
  /// Whether the host's timer sent the message, and not a thread that added a timer.
  let isFromHost = Atomic<Bool>(false)

  init() { checkAddress(item, of: &storage) }

  var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  /// The message.
  ///
  /// It retains this object until it is handled.
  var message: Inbox.Message {
    _ = Unmanaged.passRetained(self)
    return .work(item)
  }
}

extension Scheduler {
  /// Called on the host when the host's timer has fired.
  ///
  /// It sends a message and does not inspect the wheel. On a concurrent queue a drain may be running and about to go
  /// idle, and only a message keeps that drain from going idle.
  func hostTimerFired() {
    timerWakeup.isFromHost.store(true, ordering: .releasing)
    guard !timerWakeup.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    if inbox.push(timerWakeup.message) { drain() }
  }

  /// Sends the message from any thread.
  func sendTimerWakeup() {
    guard !timerWakeup.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    push(timerWakeup.message)
  }

  /// Handles the message on the scheduler itself, in its drain.
  func timerWakeupArrived() {
    _ = timerWakeup.isPending.exchange(false, ordering: .acquiringAndReleasing)
    if timerWakeup.isFromHost.exchange(false, ordering: .acquiringAndReleasing) { host.hasWoken() }
    Unmanaged.passUnretained(timerWakeup).release()
  }
}
