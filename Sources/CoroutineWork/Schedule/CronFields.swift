#if Postgres
// The five fields of cron, and the next match in a calendar without time zones.
//
// Days are those of the proleptic Gregorian calendar; a moment is a number of minutes since 1970 in that calendar.
// If both the day of the month and the day of the week are restricted, one of them is enough, as in every cron.

struct CronFields: Hashable, Sendable {
  private let minutes, hours, days, months, weekdays: UInt64
  /// Whether the hour's field begins with `*`: then each real hour counts, also one that comes twice.
  let runsEachHour: Bool
  private let anyDay, anyWeekday: Bool

  init(_ text: String) throws {
    let fields = text.split { $0 == " " || $0 == "\t" }.map(String.init)
    guard fields.count == 5 else { throw WorkScheduleError("'\(text)' has \(fields.count) fields; cron has five") }
    let months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    let weekdays = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
    minutes = try Self.read(fields[0], 0...59)
    hours = try Self.read(fields[1], 0...23)
    days = try Self.read(fields[2], 1...31)
    self.months = try Self.read(fields[3], 1...12, names: months, first: 1)
    let week = try Self.read(fields[4], 0...7, names: weekdays, first: 0)
    // Sunday is 0 and 7.
    self.weekdays = (week | week >> 7) & 0x7f
    runsEachHour = fields[1].hasPrefix("*")
    anyDay = fields[2].hasPrefix("*")
    anyWeekday = fields[4].hasPrefix("*")
    guard next(from: 0) != nil else { throw WorkScheduleError("no day of the calendar matches '\(text)'") }
  }

  /// A list of `*`, numbers, names and ranges, each with a step or without.
  private static func read(
    _ field: String,
    _ bounds: ClosedRange<Int>,
    names: [String] = [],
    first: Int = 0
  ) throws -> UInt64 {
    func number(_ text: Substring) throws -> Int {
      if let index = names.firstIndex(of: text.lowercased()) { return index + first }
      guard text.allSatisfy({ $0.isASCII && $0.isNumber }), let value = Int(text), bounds.contains(value) else {
        throw WorkScheduleError("'\(text)' is no number from \(bounds.lowerBound) to \(bounds.upperBound)")
      }
      return value
    }
    var set: UInt64 = 0
    for part in field.split(separator: ",", omittingEmptySubsequences: false) {
      let halves = part.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
      var range = bounds
      if halves[0] != "*" {
        let ends = try halves[0].split(separator: "-", maxSplits: 1, omittingEmptySubsequences: false).map(number)
        // As in every cron, `5/10` begins at 5 and has no other end than the field's.
        let last = ends.count == 2 ? ends[1] : halves.count == 2 ? bounds.upperBound : ends[0]
        guard ends[0] <= last else { throw WorkScheduleError("'\(part)' ends before it begins") }
        range = ends[0]...last
      }
      var step = 1
      if halves.count == 2 {
        guard let value = Int(halves[1]), value > 0 else { throw WorkScheduleError("'\(part)' has no step") }
        step = value
      }
      for value in stride(from: range.lowerBound, through: range.upperBound, by: step) { set |= 1 << UInt64(value) }
    }
    return set
  }

  /// The first match at `minute` or later; nil if there is none within 40 years, which have every kind of year.
  func next(from minute: Int) -> Int? {
    var day = minute.quotientRoundedDown(1_440)
    var first = minute - day * 1_440
    for _ in 0..<14_700 {
      if matches(day: day) {
        var time = first
        while time < 1_440 {
          if hours >> UInt64(time / 60) & 1 == 0 {
            time = (time / 60 + 1) * 60
          } else if minutes >> UInt64(time % 60) & 1 == 0 {
            time += 1
          } else {
            return day * 1_440 + time
          }
        }
      }
      day += 1
      first = 0
    }
    return nil
  }

  private func matches(day: Int) -> Bool {
    let (month, dayOfMonth) = Self.date(day)
    guard months >> UInt64(month) & 1 == 1 else { return false }
    // 1970 began on a Thursday.
    let weekday = ((day + 4) % 7 + 7) % 7
    let isDay = days >> UInt64(dayOfMonth) & 1 == 1
    let isWeekday = weekdays >> UInt64(weekday) & 1 == 1
    return anyDay || anyWeekday ? isDay && isWeekday : isDay || isWeekday
  }

  /// Month and day of the month of a number of days since 1970: the year is thought to begin in March, in eras of
  /// 400.
  private static func date(_ day: Int) -> (month: Int, day: Int) {
    let shifted = day + 719_468
    let dayOfEra = shifted - shifted.quotientRoundedDown(146_097) * 146_097
    let year = (dayOfEra - dayOfEra / 1_460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
    let dayOfYear = dayOfEra - (365 * year + year / 4 - year / 100)
    let month = (5 * dayOfYear + 2) / 153
    return (month < 10 ? month + 3 : month - 9, dayOfYear - (153 * month + 2) / 5 + 1)
  }
}

extension Int {
  func quotientRoundedDown(_ divisor: Int) -> Int { self >= 0 ? self / divisor : -((divisor - 1 - self) / divisor) }
}
#endif
