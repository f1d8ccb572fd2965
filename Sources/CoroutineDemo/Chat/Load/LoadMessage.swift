#if Demo
/// A message of the load program: who has sent it, its number, and when.
///
/// On its way to the server it is `load NUMBER NANOSECONDS`; from there it comes as `cSENDER: load NUMBER NANOSECONDS`.
struct LoadMessage: Equatable {
  var sender: Int
  var number: Int
  /// Since the program's start.
  var sent: Int64

  init(sender: Int, number: Int, sent: Int64) {
    (self.sender, self.number, self.sent) = (sender, number, sent)
  }

  /// Reads a line of the server; nil for all its other lines.
  init?(line: String) {
    var words = line.utf8.split(separator: UInt8(ascii: " ")).makeIterator()
    guard let name = words.next(), name.first == UInt8(ascii: "c"), name.last == UInt8(ascii: ":"),
      let keyword = words.next(), keyword.elementsEqual("load".utf8),
      let sender = Self.number(name.dropFirst().dropLast()), let number = words.next().flatMap(Self.number),
      let sent = words.next().flatMap(Self.number), words.next() == nil
    else { return nil }
    self.init(sender: sender, number: number, sent: Int64(sent))
  }

  /// What the sender says.
  var text: String { "load \(number) \(sent)" }

  static func name(of sender: Int) -> String { "c\(sender)" }

  private static func number(_ word: Substring.UTF8View) -> Int? { Int(Substring(word)) }
}
#endif
