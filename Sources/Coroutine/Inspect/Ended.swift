// The last coroutines that have ended, as values and lines. The kernel keeps them (EndedJobs.swift).

extension CoroutineRuntime.Snapshot {
  /// A coroutine that has ended.
  public struct Ended: Sendable, Codable, Identifiable {
    /// The number, unique in its process.
    public var id: UInt64
    /// The name given at the launch, or by the coroutine itself, as given.
    public var name: String?
    /// The place of the launch, as `file:line`.
    public var launchSite: String
    /// How it has ended.
    public var ending: Ending
    /// The type of the error that it has failed with; nil unless the ending is `failed`.
    public var error: String?
    /// The time since its end: too long by the longest time that one coroutine ran there without a suspension, at most.
    public var age: Duration

    /// Whether this is the end of one life of an actor, which its supervisor has restarted under the same number.
    public var isRestarted: Bool

    /// How a coroutine has ended.
    public enum Ending: String, Sendable, Codable {
      /// With a value.
      case succeeded
      /// With an error that is not its cancellation.
      case failed
      /// With its cancellation error, or cancelled before its start.
      case cancelled
    }

    private enum Key: String, CodingKey { case id, name, launchSite, ending, error, age, isRestarted }

    /// Reads `age` as nanoseconds.
    public init(from decoder: any Decoder) throws {
      let values = try decoder.container(keyedBy: Key.self)
      id = try values.decode(UInt64.self, forKey: .id)
      name = try values.decodeIfPresent(String.self, forKey: .name)
      launchSite = try values.decode(String.self, forKey: .launchSite)
      ending = try values.decode(Ending.self, forKey: .ending)
      error = try values.decodeIfPresent(String.self, forKey: .error)
      age = .nanoseconds(try values.decode(Int64.self, forKey: .age))
      isRestarted = try values.decodeIfPresent(Bool.self, forKey: .isRestarted) ?? false
    }

    /// Writes `age` as nanoseconds.
    public func encode(to encoder: any Encoder) throws {
      var values = encoder.container(keyedBy: Key.self)
      try values.encode(id, forKey: .id)
      try values.encodeIfPresent(name, forKey: .name)
      try values.encode(launchSite, forKey: .launchSite)
      try values.encode(ending, forKey: .ending)
      try values.encodeIfPresent(error, forKey: .error)
      try values.encode(age.wholeNanoseconds, forKey: .age)
      try values.encode(isRestarted, forKey: .isRestarted)
    }
  }

  /// The last coroutines that have ended, the latest first; in a simulated world none, because ends are not kept there.
  static var latestEnded: [Ended] { LiveJobs.isInWorld ? [] : EndedJobs.latest.map(Ended.init) }
}

extension CoroutineRuntime.Snapshot.Ended {
  init(_ job: EndedJob) {
    id = job.id
    name = job.name?.text
    launchSite = job.launchSite.description
    ending =
      switch job.ending {
      case .succeeded: .succeeded
      case .failed: .failed
      case .cancelled: .cancelled
      }
    error = job.failure.map { asWord($0) }
    age = job.age
    isRestarted = job.isRestarted
  }

  /// `#7 "fetch" failed with NetError 9 s ago, launched at Server/main.swift:48`.
  package var line: String {
    let what =
      switch ending {
      case .succeeded: "ended"
      case .failed: "failed" + (error.map { " with \($0)" } ?? "")
      case .cancelled: "was cancelled"
      }
    let title = "#\(id)" + (name.map { " \"\($0.asName)\"" } ?? "")
    let restarted = isRestarted ? " and was restarted" : ""
    return "\(title) \(what)\(restarted) \(EndedJob.seconds(age)) ago, launched at \(launchSite)"
  }
}

extension CoroutineRuntime {
  /// Keeps the ends of coroutines from now on, for ``Snapshot/ended``.
  package static func keepEnded() { EndedJobs.begin() }

  /// The coroutine with this number, if it is one of the last that have ended.
  package static func ended(_ id: UInt64) -> Snapshot.Ended? { EndedJobs.find(id).map(Snapshot.Ended.init) }

  /// The last coroutines that have ended, the latest first, without a snapshot of the others.
  package static var ended: [Snapshot.Ended] { Snapshot.latestEnded }

  /// The lines about the last coroutines that have ended, for a dump; empty if none is known.
  static func endedText(_ most: Int) -> String {
    let latest = ended.prefix(most)
    if latest.isEmpty { return "" }
    return latest.reduce(into: "\nThe last that have ended:\n") { $0 += "  \($1.line)\n" }
  }
}
