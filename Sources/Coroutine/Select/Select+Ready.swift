import Glibc
import Synchronization

// The select case of a descriptor that the runtime owns: it is ready when a try may find something, or when the
// descriptor is closed. It takes nothing: what is there is taken by the body.

extension WatchedDescriptor {
  /// Creates a case of ``co_select(biased:_:)`` that is ready when the direction is.
  ///
  /// `body` gets 0, or the error number with which the kernel refused to watch the descriptor. `isReady` polls the
  /// descriptor before the select waits, if the runtime does not know its state. Dumps name the descriptor by `shown`,
  /// or by its own number.
  package func onReady<R>(
    _ direction: Direction,
    shown: Int32? = nil,
    isReady: @escaping @Sendable (Int32) -> Bool,
    _ body: @escaping (sending Int32) throws -> R
  ) -> SelectCase<R> {
    let readiness = self.direction(direction)
    let target = ReadySource(self, readiness, shown ?? number, isReady)
    return SelectCase(
      ReadyOperation.self,
      target: target,
      lock: target.waitLock,
      queue: readiness.pointee.queue.unsafelyUnwrapped,
      needsPreparation: true,
      taking: body
    )
  }
}

/// What a case waits for; it holds the descriptor.
private final class ReadySource: Inspectable, Sendable {
  let descriptor: WatchedDescriptor
  // Sound because the record, in memory that is never freed, guards itself, and belongs to `descriptor`.
  nonisolated(unsafe) let readiness: ReadinessRef
  /// The number that dumps name.
  let shown: Int32
  let isReady: @Sendable (Int32) -> Bool

  init(
    _ descriptor: WatchedDescriptor,
    _ readiness: ReadinessRef,
    _ shown: Int32,
    _ isReady: @escaping @Sendable (Int32) -> Bool
  ) {
    self.descriptor = descriptor
    self.readiness = readiness
    self.shown = shown
    self.isReady = isReady
  }

  deinit { Inspection.letFinish(self) }

  var waitLock: UnsafePointer<SpinLock> { withUnsafePointer(to: readiness.pointee.lock) { $0 } }
  func inspect(_ names: JobNames) -> String { "descriptor \(shown)" }
  func verb(of queue: UInt?) -> String { "wait for" }
}

/// The word of the waiter: the refusal of the kernel, or of a simulated world.
private enum ReadyOperation: SelectOperation {
  static func prepare(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    watch(target, waiter)
    // READY can be stale: no failed try has been recorded since the last event, or since the start.
    let seen = target.readiness.word
    if seen.state == .ready, target.descriptor.enter() {
      if !isReady(target) { target.readiness.clear(seen) }
      target.descriptor.leave()
    }
  }

  /// Whether a try would find something; a simulated connection that is broken has no bytes that say so.
  private static func isReady(_ target: ReadySource) -> Bool {
    if let simulated = target.descriptor.simulated, simulated.failure != 0 { return true }
    return target.isReady(target.descriptor.number)
  }

  /// Polls also if nothing has been reported: an event may be in the kernel, which no thread has taken yet.
  ///
  /// Costs a system call, which a select that waits for the event does not need.
  static func prepareToDecide(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    watch(target, waiter)
    let seen = target.readiness.word
    guard seen.state != .closed, target.descriptor.enter() else { return }
    if !isReady(target) {
      target.readiness.clear(seen)
    } else if seen.state != .ready {
      // The event does the same once more when a thread takes it.
      target.readiness.happened(seen.generation, sticks: false)
    }
    target.descriptor.leave()
  }

  private static func watch(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    do {
      if target.descriptor.simulated == nil {
        // A simulated world waits for real descriptors only where that is declared; its run fails.
        try Host.requireReal { "descriptor \(target.descriptor.number) in a select" }
        try target.descriptor.watch()
      }
    } catch {
      waiter.pointee.words[0] = UInt((error as? DescriptorRefusal)?.code ?? EPERM)
    }
  }

  static func attempt(_ target: ReadySource, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.pointee.words[0] == 0 && target.readiness.beginWaiting() ? .no : .yes
  }

  static func finish(_ target: ReadySource, _ waiter: SelectWaiterRef) -> Int32 {
    return Int32(truncatingIfNeeded: waiter.pointee.words[0])
  }

  static func dispose(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    // The select has unlinked its waiter by itself.
    target.readiness.pointee.lock.lock()
    target.readiness.endWaitingIfAlone()
    target.readiness.pointee.lock.unlock()
  }
}
