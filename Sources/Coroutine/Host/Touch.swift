public import CCoroutine

extension Host {
  /// Tells a simulated world that the current step uses an object without waiting for it.
  ///
  /// Every public call calls this that never waits and that another coroutine could observe: a send or an unlock that
  /// only tries, a close, a signal, a count, a read of a state. So a search may leave out schedules that differ only in
  /// the order of steps on different objects (Simulation/Footprints.swift). `make lint` finds a call that does not, and
  /// that scripts/untouched.txt does not name.
  ///
  /// `object` is the address that waits for this object use, if there are any. Outside a world it costs one load of a
  /// word that does not change.
  @inlinable @inline(__always)
  static func touches(_ object: UInt) { if cco_has_worlds() { recordTouch(object) } }

  @usableFromInline @inline(never)
  static func recordTouch(_ object: UInt) {
    guard let scheduler = Carrier.current?.pointee.scheduler else { return }
    scheduler._withUnsafeGuaranteedRef { if $0.host.hasVirtualTime { $0.host.touches(object) } }
  }

  /// The address of `object`, which nothing retains.
  @inlinable @inline(__always)
  static func touches(_ object: AnyObject) {
    if cco_has_worlds() { recordTouch(UInt(bitPattern: Unmanaged.passUnretained(object).toOpaque())) }
  }
}
