extension Promise where Success == Void {
  /// Returns a promise for the values of promises of different types, as a tuple.
  ///
  /// The first failure rejects it at once.
  public static func all<each Value: Sendable>(
    _ promises: repeat Promise<each Value>,
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<(repeat each Value)> {
    collectingTypes(repeat each promises, losers: losers, LaunchSite(file: file, line: line))
  }

  static func collectingTypes<each Value: Sendable>(
    _ promises: repeat Promise<each Value>,
    losers: Losers,
    _ launchSite: LaunchSite
  ) -> Promise<(repeat each Value)> {
    var members: [AnyPromise] = []
    var readers: [(AnyPromise) -> any Sendable] = []
    repeat members.append(each promises)
    repeat readers.append(Self.reader((each Value).self))
    let read = readers
    return .collecting(members, losers, launchSite) {
      read[$1]($0)
    } make: { values in
      var next = values.startIndex
      return (repeat Self.value((each Value).self, values, &next))
    }
  }

  private static func reader<Value: Sendable>(_ type: Value.Type) -> (AnyPromise) -> any Sendable {
    { $0.completion.value(as: type) }
  }

  private static func value<Value>(_ type: Value.Type, _ values: [any Sendable], _ next: inout Int) -> Value {
    defer { next += 1 }
    guard let value = values[next] as? Value else {
      preconditionFailure("The stored value of a member does not have the type of its promise.")
    }
    return value
  }
}
