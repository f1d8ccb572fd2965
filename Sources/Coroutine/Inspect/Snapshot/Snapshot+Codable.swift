// The form of a snapshot for tools. Times are numbers of nanoseconds: what a Duration writes by itself is an array of
// two numbers that no tool reads. `SnapshotJSON.swift` writes the same form.

extension CoroutineRuntime.Snapshot {
  private enum Key: String, CodingKey { case coroutines, lateTimers }

  /// Reads times as nanoseconds.
  public init(from decoder: any Decoder) throws {
    let values = try decoder.container(keyedBy: Key.self)
    self.init(
      coroutines: try values.decode([Coroutine].self, forKey: .coroutines),
      lateTimers: try values.decode([Int64].self, forKey: .lateTimers).map { .nanoseconds($0) }
    )
  }

  /// Writes times as nanoseconds.
  public func encode(to encoder: any Encoder) throws {
    var values = encoder.container(keyedBy: Key.self)
    try values.encode(coroutines, forKey: .coroutines)
    try values.encode(lateTimers.map(\.wholeNanoseconds), forKey: .lateTimers)
  }
}

extension CoroutineRuntime.Snapshot.Coroutine {
  private enum Key: String, CodingKey {
    case id, name, launchSite, state, wait, scheduler, since, isCancelled, isTorn, stack
  }

  /// Reads `since` as nanoseconds.
  public init(from decoder: any Decoder) throws {
    let values = try decoder.container(keyedBy: Key.self)
    self.init(
      id: try values.decode(UInt64.self, forKey: .id),
      name: try values.decodeIfPresent(String.self, forKey: .name),
      launchSite: try values.decode(String.self, forKey: .launchSite),
      state: try values.decode(State.self, forKey: .state),
      wait: try values.decodeIfPresent(CoroutineRuntime.Snapshot.Wait.self, forKey: .wait),
      scheduler: try values.decode(String.self, forKey: .scheduler),
      since: .nanoseconds(try values.decode(Int64.self, forKey: .since)),
      isCancelled: try values.decode(Bool.self, forKey: .isCancelled),
      isTorn: try values.decode(Bool.self, forKey: .isTorn),
      stack: try values.decode([UInt].self, forKey: .stack)
    )
  }

  /// Writes `since` as nanoseconds.
  public func encode(to encoder: any Encoder) throws {
    var values = encoder.container(keyedBy: Key.self)
    try values.encode(id, forKey: .id)
    try values.encodeIfPresent(name, forKey: .name)
    try values.encode(launchSite, forKey: .launchSite)
    try values.encode(state, forKey: .state)
    try values.encodeIfPresent(wait, forKey: .wait)
    try values.encode(scheduler, forKey: .scheduler)
    try values.encode(since.wholeNanoseconds, forKey: .since)
    try values.encode(isCancelled, forKey: .isCancelled)
    try values.encode(isTorn, forKey: .isTorn)
    try values.encode(stack, forKey: .stack)
  }
}

extension Duration {
  /// The whole nanoseconds, as many as a number has room for.
  var wholeNanoseconds: Int64 {
    let (seconds, attoseconds) = components
    let (product, isTooLarge) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
    let (sum, isStillTooLarge) = product.addingReportingOverflow(attoseconds / 1_000_000_000)
    if isTooLarge || isStillTooLarge { return seconds < 0 ? .min : .max }
    return sum
  }
}
