#if Demo
/// What a line asks for.
enum ChatRequest: Equatable {
  /// An empty line: a sign of life.
  case nothing
  case say(String)
  case nick(String)
  case join(String)
  case leave
  case rooms
  case who
  case help
  case quit

  static let helpText = """
    * /nick NAME   changes your name
    * /join ROOM   enters a room, and leaves the one you are in; what you say goes to everybody in it
    * /leave       leaves the room
    * /rooms       lists the rooms
    * /who         lists who is in your room, or everywhere if you are in none
    * /quit        says good-bye
    """

  init(line: String) throws(ChatRefusal) {
    let text = line.shownSafely
    guard text.hasPrefix("/") else {
      self = text.allSatisfy(\.isWhitespace) ? .nothing : .say(text)
      return
    }
    let words = text.split(maxSplits: 1, whereSeparator: \.isWhitespace)
    let argument = words.count > 1 ? words[1].trimmingPrefix(while: \.isWhitespace) : ""
    switch words[0] {
    case "/nick": self = .nick(try Self.name(argument, for: "/nick"))
    case "/join": self = .join(try Self.name(argument, for: "/join"))
    case "/leave": self = .leave
    case "/rooms": self = .rooms
    case "/who": self = .who
    case "/help": self = .help
    case "/quit": self = .quit
    default: throw .unknownCommand(String(words[0].prefix(ChatName.longest)))
    }
  }

  private static func name(_ argument: Substring, for command: String) throws(ChatRefusal) -> String {
    let word = argument.prefix { !$0.isWhitespace }
    if word.isEmpty { throw .missingName(command) }
    // No second word: it would be ignored, and its writer would not notice.
    guard argument.dropFirst(word.count).allSatisfy(\.isWhitespace), ChatName.isValid(word) else {
      throw .badName(String(argument.prefix(2 * ChatName.longest)))
    }
    return String(word)
  }
}
#endif
