#if Postgres
public import FoundationEssentials

// The server counts microseconds since the start of the year 2000 in UTC, and days for a date; Foundation counts
// seconds since the start of 2001. The largest and the smallest number are the server's infinities.

private let microsecondsFrom2000To2001: Int64 = 366 * 86_400 * 1_000_000

extension Date: PostgresEncodable, PostgresDecodable {
  /// `timestamp with time zone`.
  public static var postgresType: UInt32 { PostgresType.timestamptz }

  /// Appends 8 bytes, rounded to microseconds.
  ///
  /// The server refuses a date that is out of its range (22008).
  public func encode(into bytes: inout [UInt8]) {
    // One above the lowest, and one below the highest number: out of range, but not infinite.
    let lowest = Int64.min + 1
    let highest = Int64.max - 1
    let microseconds = (timeIntervalSinceReferenceDate * 1e6).rounded()
    var number = highest
    if microseconds < -9.2e18 {
      number = lowest
    } else if microseconds < 9.2e18 {
      let (sum, isOver) = Int64(microseconds).addingReportingOverflow(microsecondsFrom2000To2001)
      number = isOver ? highest : sum
    }
    bytes.append(bigEndian: number)
  }

  /// Reads a `timestamptz`, a `timestamp` or a `date`, the last two as of UTC; refuses infinite ones.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    guard !isText else { throw PostgresError.misfit("a date as text depends on settings of the server", type) }
    let number: Int64
    switch type {
    case PostgresType.timestamptz, PostgresType.timestamp:
      number = try bytes.bigEndian(Int64.self)
      guard number != .max, number != .min else { throw PostgresError.misfit("an infinite date is no Date", type) }
    case PostgresType.date:
      let days = try bytes.bigEndian(Int32.self)
      guard days != .max, days != .min else { throw PostgresError.misfit("an infinite date is no Date", type) }
      // 2³¹ days are more microseconds than 64 bits hold, so the date is computed in seconds.
      self.init(timeIntervalSinceReferenceDate: (Double(days) - 366) * 86_400)
      return
    default: throw PostgresError.misfit("it is no date", type)
    }
    let (since2001, isOver) = number.subtractingReportingOverflow(microsecondsFrom2000To2001)
    guard !isOver else { throw PostgresError.misfit("the date is out of range", type) }
    // Whole seconds and the rest apart: their sum is rounded once.
    let (seconds, rest) = since2001.quotientAndRemainder(dividingBy: 1_000_000)
    self.init(timeIntervalSinceReferenceDate: Double(seconds) + Double(rest) / 1e6)
  }
}
#endif
