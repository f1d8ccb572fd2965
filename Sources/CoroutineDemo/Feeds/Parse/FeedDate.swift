#if Demo
import Foundation

/// The dates of feeds: RFC 822 in RSS ("Sat, 07 Sep 2002 00:00:01 GMT"), RFC 3339 in Atom ("2003-12-13T18:30:02Z"), and what
/// people write instead. By hand, since a DateFormatter would take as long as the rest of the parsing.
enum FeedDate {
  /// nil: no date that makes sense. An item without one is an item all the same.
  static func parse(_ text: String) -> Date? {
    let text = text.trimmed
    return text.utf8.dropFirst(4).first == UInt8(ascii: "-") ? internet(text) : mail(text)
  }

  /// `2003-12-13T18:30:02.25+01:00`; the time may be missing, the T a space.
  private static func internet(_ text: String) -> Date? {
    let halves = text.split(maxSplits: 1) { $0 == "T" || $0 == "t" || $0 == " " }
    let day = halves[0].split(separator: "-").compactMap { Int($0) }
    guard day.count == 3 else { return nil }
    guard halves.count == 2 else { return date(day[0], day[1], day[2], [], zone: 0) }
    let zoneStart = halves[1].firstIndex { "+-Zz".contains($0) } ?? halves[1].endIndex
    let time = halves[1][..<zoneStart].split(separator: ".")[0]
    return date(day[0], day[1], day[2], numbers(time), zone: zone(halves[1][zoneStart...]))
  }

  /// `Sat, 07 Sep 2002 00:00:01 +0100`; the weekday, the seconds and the zone may be missing.
  private static func mail(_ text: String) -> Date? {
    let words = text.split { $0 == " " || $0 == "," }
    let dated = words.drop { Int($0) == nil }
    guard dated.count >= 3 else { return nil }
    let parts = Array(dated)
    guard let day = Int(parts[0]), let month = months.firstIndex(of: parts[1].prefix(3).lowercased()),
      var year = Int(parts[2])
    else { return nil }
    if year < 100 { year += year < 70 ? 2000 : 1900 }
    let time = parts.count > 3 ? numbers(parts[3]) : []
    return date(year, month + 1, day, time, zone: parts.count > 4 ? zone(parts[4]) : 0)
  }

  private static func numbers(_ time: Substring) -> [Int] {
    time.split(separator: ":").compactMap { Int($0) }
  }

  /// Seconds east of Greenwich. A name that is not known counts as Greenwich, as RFC 2822 has it.
  private static func zone(_ text: Substring) -> Int {
    guard let sign = text.first, sign == "+" || sign == "-" else { return (zones[text.uppercased()] ?? 0) * 3600 }
    guard let digits = Int(text.dropFirst().filter { $0 != ":" }) else { return 0 }
    return (digits / 100 * 3600 + digits % 100 * 60) * (sign == "-" ? -1 : 1)
  }

  private static func date(_ year: Int, _ month: Int, _ day: Int, _ time: [Int], zone: Int) -> Date? {
    guard (1...9999).contains(year), (1...12).contains(month), (1...31).contains(day) else { return nil }
    let time = time + [0, 0, 0]
    guard (0...24).contains(time[0]), (0...59).contains(time[1]), (0...60).contains(time[2]) else { return nil }
    let seconds = days(year, month, day) * 86_400 + time[0] * 3600 + time[1] * 60 + time[2] - zone
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

  private static let months = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
  ]
  private static let zones = ["EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7]
}
#endif
