#if Postgres
import Coroutine
public import FoundationEssentials
// The rules of the zones.
import FoundationInternationalization

/// When jobs are added by time.
///
/// One job a tick, in all programs together: the tick is the job's unique key.
public struct WorkSchedule: Sendable {
  /// The same for two schedules that have the same ticks.
  let rule: String
  /// The time between two ticks in seconds, where it is always the same.
  var period: Double?
  private let find: @Sendable (Double) -> Double?

  /// - Parameter find: The first tick after a moment of at most 10¹⁵ s before or after 1970, both in seconds since
  ///   then.
  private init(rule: String, period: Double? = nil, find: @escaping @Sendable (Double) -> Double?) {
    (self.rule, self.period, self.find) = (rule, period, find)
  }

  /// The first tick after a moment, both in seconds since 1970.
  ///
  /// Further away than 30 million years there are no ticks, nor after what is no number: they could not be counted.
  func next(_ moment: Double) -> Double? { moment < 1e15 ? find(max(moment, -1e15)) : nil }

  /// Makes a schedule with a tick every `period` since 1970 in UTC.
  ///
  /// Traps if `period` is less than a second.
  public static func every(_ period: Duration) -> WorkSchedule {
    if period < .seconds(1) { misuse("a schedule has at most one tick a second; its period is a second or more") }
    let milliseconds = period.milliseconds
    return WorkSchedule(rule: "every \(milliseconds) ms", period: Double(milliseconds) / 1_000) { moment in
      // Counted in whole milliseconds, so that ticks are the same numbers in all programs.
      let now = Int((moment * 1_000).rounded(.down))
      return Double((now.quotientRoundedDown(milliseconds) + 1) * milliseconds) / 1_000
    }
  }

  /// Makes a schedule of the five fields of cron, in a time zone such as "Europe/Berlin".
  ///
  /// A time that the change to summer time skips runs at the first minute after it. A time that comes twice runs
  /// once, at the first; `*` in the hour's field runs in each real hour. The zone's rules are those of this program's
  /// Foundation, so that ``ticks(from:count:)`` need not ask the server.
  /// - Throws: ``WorkScheduleError`` for a text that has no next tick, and for an unknown zone.
  public static func cron(_ fields: String, in timeZone: String = "UTC") throws -> WorkSchedule {
    guard let zone = TimeZone(identifier: timeZone) else {
      throw WorkScheduleError("there is no time zone '\(timeZone)'")
    }
    let ticks = CronTicks(fields: try CronFields(fields)) { moment in
      zone.secondsFromGMT(for: Date(timeIntervalSince1970: Double(moment)))
    }
    let normal = fields.split { $0 == " " || $0 == "\t" }.joined(separator: " ")
    return WorkSchedule(rule: "cron \(normal) in \(timeZone)") { moment in
      ticks.next(after: Int(moment.rounded(.down))).map(Double.init)
    }
  }

  /// What happens to ticks that no program was there for.
  public struct Missed: Sendable, Hashable {
    /// How many of the last ones get a job.
    let most: Int

    /// Nothing.
    public static var skip: Missed { Missed(most: 0) }
    /// One job is added for all of them, with the last tick.
    public static var latest: Missed { Missed(most: 1) }
    /// A job is added for each of the last ones, as many as this.
    public static func all(most: Int) -> Missed { Missed(most: max(most, 0)) }
  }

  /// Returns the first ticks at a date or later, for tests and displays; none after a date that is no number.
  ///
  /// Never suspends; any thread.
  public func ticks(from: Date, count: Int) -> [Date] {
    var ticks: [Date] = []
    // Ticks are whole milliseconds, so this is before a tick at the date itself.
    var moment = from.timeIntervalSince1970 - 0.0005
    while ticks.count < count, let tick = next(moment) {
      ticks.append(Date(timeIntervalSince1970: tick))
      moment = tick
    }
    return ticks
  }
}

/// A text that is no schedule, or a schedule that has no next tick.
public struct WorkScheduleError: Error, Sendable, Hashable, CustomStringConvertible {
  /// What is wrong.
  public let description: String
  init(_ description: String) { self.description = description }
}
#endif
