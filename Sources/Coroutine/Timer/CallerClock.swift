import Synchronization

/// The clock by which the calling code's timers run: nanoseconds, in a simulated world those of its host.
package enum CallerClock {
  package static var now: UInt64 {
    guard let scheduler = Carrier.current?.pointee.job?.pointee.scheduler.load(ordering: .relaxed) else {
      return Clock.now
    }
    return scheduler._withUnsafeGuaranteedRef { $0.clock }
  }
}
