import Glibc

/// The header `date`, formatted once a second.
struct HTTPDate {
  private var second = Int.min
  private var text = ""

  mutating func now() -> String {
    let now = time(nil)
    if now != second { (second, text) = (now, Self.format(now)) }
    return text
  }

  /// A time as RFC 9110 writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
  static func format(_ time: Int) -> String {
    var seconds = time_t(time)
    var parts = tm()
    gmtime_r(&seconds, &parts)
    let days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    func two(_ number: Int32) -> String { number < 10 ? "0\(number)" : "\(number)" }
    let date = "\(days[Int(parts.tm_wday)]), \(two(parts.tm_mday)) \(months[Int(parts.tm_mon)]) \(1900 + parts.tm_year)"
    return "\(date) \(two(parts.tm_hour)):\(two(parts.tm_min)):\(two(parts.tm_sec)) GMT"
  }
}
