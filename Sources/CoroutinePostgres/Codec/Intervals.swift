#if Postgres
/// The binary format of `interval`: microseconds: Int64, days: Int32, months: Int32.
enum IntervalFormat {
  static let length = 16

  /// Throws for a parameter that is none: a Duration of more microseconds than the server counts has appended nothing.
  static func check(_ count: Int) throws {
    guard count >= 0, count != length else { return }
    throw PostgresError(.decoding, "a Duration is out of range of interval, which has about 292,000 years")
  }
}

extension Duration: PostgresEncodable, PostgresDecodable {
  /// `interval`.
  public static var postgresType: UInt32 { PostgresType.interval }

  /// Appends the length, rounded to microseconds.
  ///
  /// If it is out of the server's range, running the statement throws `.decoding`.
  public func encode(into bytes: inout [UInt8]) {
    let (seconds, attoseconds) = components
    let rest = Int64((Double(attoseconds) / 1e12).rounded())
    let (whole, isOver) = seconds.multipliedReportingOverflow(by: 1_000_000)
    let (sum, isOverAtLast) = whole.addingReportingOverflow(rest)
    if isOver || isOverAtLast { return }
    bytes.append(bigEndian: sum)
    bytes.append(bigEndian: Int32(0))
    bytes.append(bigEndian: Int32(0))
  }

  /// Reads an `interval`; a day has 24 hours, and one with months is refused, because they have no length.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    guard !isText, type == PostgresType.interval else { throw PostgresError.misfit("it is no interval", type) }
    guard try bytes.bigEndian(Int32.self, at: 12) == 0 else {
      throw PostgresError.misfit("an interval with months or without an end has no length", type)
    }
    let days = try Int64(bytes.bigEndian(Int32.self, at: 8))
    self = .microseconds(try bytes.bigEndian(Int64.self)) + .seconds(days * 86_400)
  }
}
#endif
