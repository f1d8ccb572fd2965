#if Demo
import Foundation

/// The dates of feeds: RFC 822 in RSS ("Sat, 07 Sep 2002 00:00:01 GMT"), RFC 3339 in Atom ("2003-12-13T18:30:02Z"), and
/// what people write instead.
///
/// By hand and byte by byte: a DateFormatter would take longer than the rest of the parsing.
enum FeedDate {
  /// nil: no date that makes sense.
  ///
  /// An item without one is an item all the same.
  static func parse(_ text: String) -> Date? {
    var text = text
    return text.withUTF8 { bytes in
      var words = DateWords(bytes)
      guard let first = words.next() else { return nil }
      return if case .number(let year, digits: 4) = first { internet(year, &words) } else { mail(first, &words) }
    }
  }

  /// From behind the year of `2003-12-13T18:30:02.25+01:00`; the time may be missing, the T a space.
  private static func internet(_ year: Int, _ words: inout DateWords) -> Date? {
    guard let month = words.number(), let day = words.number() else { return nil }
    return date(year, month, day, &words)
  }

  /// `Sat, 07 Sep 2002 00:00:01 +0100`; the weekday, the seconds and the zone may be missing.
  private static func mail(_ first: DateWords.Word, _ words: inout DateWords) -> Date? {
    var first = first
    if case .name = first, let second = words.next() { first = second }
    guard case .number(let day, _) = first, case .name(let name) = words.next(),
      let month = months.firstIndex(of: name & 0xFF_FFFF), var year = words.number()
    else { return nil }
    if year < 100 { year += year < 70 ? 2000 : 1900 }
    return date(year, month + 1, day, &words)
  }

  /// From behind the day: the time and the zone, where there are some.
  private static func date(_ year: Int, _ month: Int, _ day: Int, _ words: inout DateWords) -> Date? {
    guard (1...9999).contains(year), (1...12).contains(month), (1...31).contains(day) else { return nil }
    let (hour, minute, second) = words.time()
    guard (0...24).contains(hour), (0...59).contains(minute), (0...60).contains(second) else { return nil }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - words.zone(named: zones)
    return Date(timeIntervalSince1970: Double(seconds))
  }

  /// Days since 1970-01-01, in years that begin in March, so that the leap day is the last one.
  private static func days(_ year: Int, _ month: Int, _ day: Int) -> Int {
    let shifted = month <= 2 ? year - 1 : year
    let era = shifted / 400
    let yearOfEra = shifted - era * 400
    let dayOfYear = (153 * ((month + 9) % 12) + 2) / 5 + day - 1
    return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468
  }

  private static let months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    .map(DateWords.packed)

  /// In hours.
  ///
  /// Any other name counts as Greenwich, as RFC 2822 has it.
  private static let zones = [
    "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7, "cet": 1, "cest": 2,
  ].reduce(into: [:]) { $0[DateWords.packed($1.key)] = $1.value }
}

/// The numbers and names in a date, one after the other.
struct DateWords {
  enum Word {
    case number(Int, digits: Int)
    /// Its first letters, in lower case, packed into one integer.
    case name(UInt64)
  }

  private let bytes: UnsafeBufferPointer<UInt8>
  private var index = 0

  init(_ bytes: UnsafeBufferPointer<UInt8>) {
    self.bytes = bytes
  }

  mutating func next() -> Word? {
    while index < bytes.count {
      let byte = bytes[index]
      if byte &- 48 < 10 {
        let (value, digits) = digits()
        return .number(value, digits: digits)
      }
      if (byte | 32) &- 97 < 26 { return .name(name()) }
      index += 1
    }
    return nil
  }

  mutating func number() -> Int? {
    guard case .number(let value, _) = next() else { return nil }
    return value
  }

  /// `18:30:02.25`, or what there is of it.
  ///
  /// A fraction is left out.
  mutating func time() -> (hour: Int, minute: Int, second: Int) {
    // The T between day and time, which would be a name.
    if index < bytes.count, bytes[index] | 32 == UInt8(ascii: "t") { index += 1 }
    guard let hour = number(), index < bytes.count, bytes[index] == UInt8(ascii: ":"), let minute = number() else {
      return (0, 0, 0)
    }
    guard index < bytes.count, bytes[index] == UInt8(ascii: ":"), let second = number() else {
      return (hour, minute, 0)
    }
    if index < bytes.count, bytes[index] == UInt8(ascii: ".") { _ = number() }
    return (hour, minute, second)
  }

  /// Seconds east of Greenwich: `+01:00`, `-0500`, or a name.
  mutating func zone(named zones: [UInt64: Int]) -> Int {
    while index < bytes.count {
      switch bytes[index] {
      case UInt8(ascii: "+"), UInt8(ascii: "-"):
        let sign = bytes[index] == UInt8(ascii: "-") ? -1 : 1
        guard case .number(var value, let digits) = next() else { return 0 }
        // With a colon the minutes are a number of their own.
        if digits <= 2 { value = value * 100 + (number() ?? 0) }
        return sign * (value / 100 * 3600 + value % 100 * 60)
      case let byte where (byte | 32) &- 97 < 26: return (zones[name()] ?? 0) * 3600
      default: index += 1
      }
    }
    return 0
  }

  static func packed(_ name: String) -> UInt64 {
    name.utf8.reversed().reduce(0) { $0 << 8 | UInt64($1) }
  }

  private mutating func digits() -> (value: Int, count: Int) {
    var (value, count) = (0, 0)
    while index < bytes.count, bytes[index] &- 48 < 10 {
      // Nothing in a date is longer; a number that is cannot overflow either.
      if count < 9 { value = value * 10 + Int(bytes[index] &- 48) }
      count += 1
      index += 1
    }
    return (value, count)
  }

  private mutating func name() -> UInt64 {
    var (name, shift) = (0 as UInt64, 0 as UInt64)
    while index < bytes.count, (bytes[index] | 32) &- 97 < 26 {
      if shift < 64 { name |= UInt64(bytes[index] | 32) << shift }
      shift += 8
      index += 1
    }
    return name
  }
}
#endif
