// Old spellings of calls. Each stays for one release. Those whose base name has not changed are disfavoured:
// otherwise `Network.heal`, stored in a variable, would be ambiguous.

extension World.Network {
  /// The old form of ``setLatency(_:from:to:)``.
  @available(*, deprecated, renamed: "setLatency(_:from:to:)")
  public func latency(_ from: String, _ to: String, _ range: ClosedRange<Duration>) {
    setLatency(range, from: from, to: to)
  }

  /// The old form of ``setLoss(_:from:to:)``.
  @available(*, deprecated, renamed: "setLoss(_:from:to:)")
  public func loss(_ from: String, _ to: String, _ part: Double) { setLoss(part, from: from, to: to) }

  /// The old form of ``partition(from:to:)``.
  @available(*, deprecated, renamed: "partition(from:to:)")
  @_disfavoredOverload
  public func partition(_ from: String, _ to: String) { partition(from: from, to: to) }

  /// The old form of ``heal(from:to:)``.
  @available(*, deprecated, renamed: "heal(from:to:)")
  @_disfavoredOverload
  public func heal(_ from: String, _ to: String) { heal(from: from, to: to) }

  /// The old form of ``setClockRate(_:of:)``.
  @available(*, deprecated, renamed: "setClockRate(_:of:)")
  public func clock(_ host: String, rate: Double) { setClockRate(rate, of: host) }
}
