#if Demo
/// Why a line had no effect; the client is told.
///
/// The answer is `! CODE SENTENCE`: the code is for programs, the sentence for people.
enum ChatRefusal: Error, Equatable, CustomStringConvertible {
  case longLine(longest: Int)
  case unknownCommand(String)
  case missingName(String)
  case badName(String)
  case nameTaken(String)
  case noRoom
  case sameRoom(String)

  var code: String {
    switch self {
    case .longLine: "long-line"
    case .unknownCommand: "unknown-command"
    case .missingName: "missing-name"
    case .badName: "bad-name"
    case .nameTaken: "name-taken"
    case .noRoom: "no-room"
    case .sameRoom: "same-room"
    }
  }

  var description: String { "! \(code) \(sentence)" }

  private var sentence: String {
    switch self {
    case .longLine(let longest): "A line has at most \(longest) bytes. Yours was dropped; send it in parts."
    case .unknownCommand(let name): "There is no command \(name). /help lists the commands."
    case .missingName(let command): "\(command) needs a name, as in: \(command) tea"
    case .badName(let name): "\(name) is no name. \(ChatName.rule)"
    case .nameTaken(let name): "Somebody here is called \(name). Choose another name."
    case .noRoom: "You are in no room, so nobody gets your message. Join one: /join tea"
    case .sameRoom(let room): "You are in \(room) already."
    }
  }
}
#endif
