"""How advice is phrased: the sentences of the command line.

The layers below give an action code with arguments (`weft.kernel.errors`). A surface has a table of sentences for the
codes that it says in words of its own, such as the command to run; for every other code the sentence of the code
itself is shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.kernel.errors import Action, Advice
from weft.kernel.typed_names import shell_word

COMMAND_LINE: Mapping[Action, str] = {
    # values
    Action.PASS_MESSAGE: "say it with --message TEXT",
    Action.PASS_TEXT: "give one with --text",
    Action.FETCH_MODEL: "fetch it with `weft model get {model}`",
    Action.SET_BASE_URL: "`weft provider configure {provider} --base-url URL` names its server",
    Action.CHECK_BASE_URL: "check the base URL of the provider, many end with /v1:"
    " `weft provider configure {provider} --base-url URL` changes it",
    Action.CHOOSE_ONE_KEY_SOURCE: "say --env VARIABLE or --cmd COMMAND, not both",
    Action.READ_HELP: "`{command} --help` shows how it is used",
    # names and lists
    Action.LIST_INBOX: "`weft inbox` lists them",
    Action.LIST_ROOMS: "`weft room list` lists them",
    Action.ADD_AGENT: "it is an agent: `weft room add` lets it in",
    Action.INVITE_PERSON: "that is a person: `weft room invite` lets them in",
    Action.NAME_WHO_ACTS: "`weft program list` shows people and agents, `weft human create` makes a person",
    Action.ANSWER_APPROVAL: "`weft approve {approval}` shows and allows it, `weft reject {approval}` refuses it",
    Action.LIST_APPROVALS: "`weft approvals` lists them",
    Action.LIST_TOOLSETS: "`weft toolset list` lists them, with those that are built in",
    Action.LIST_POLICIES: "`weft policy list` lists them",
    Action.LIST_RESOURCES: "`weft resource list` lists them",
    Action.RECONCILE_RESOURCES: "`weft resource reconcile` carries them out, and so does `weft broker` while it runs",
    Action.NAME_A_NODE: "name a turn (`main~1`), an event by its id, or KIND:NAME, such as `session:main`",
    Action.WAIT_FOR_INBOX: "wait until some are answered; `weft inbox` lists them, `weft inbox --cancel ID` drops one",
    Action.FREE_SESSION: "wait for it, or cut it short with `weft interrupt {session}`; `weft inbox` lists what waits,"
    " `weft inbox --cancel ID` drops a message",
    Action.SERVE_TURN: "`weft broker` or `weft chat {session}` goes on with it;"
    " after `weft interrupt {session}` they end it",
    Action.SERVE_MESSAGE: "let its sender or `weft broker` answer it, or drop it with `weft inbox --cancel {message}`",
    Action.INTERRUPT_SESSION: "`weft interrupt {session}` ends the turn that has it",
    Action.LIST_HISTORY: "`weft sessions` lists sessions, `weft log` lists turns",
    Action.LIST_SESSIONS: "`weft sessions` lists them",
    Action.LIST_PERSONAS: "`weft sessions --json` shows the persona of each session",
    Action.LIST_KEYS: "`weft key list` lists them",
    Action.LIST_ERASURES: "`weft erase --list` shows who erased what, when and why",
    Action.LIST_PROGRAMS: "`weft program list` lists them",
    Action.LIST_VERSIONS: "`weft program history NAME` lists them",
    Action.LIST_REQUESTS: "`weft human requests` lists them",
    Action.CHECK_ADDRESS: "check the address; `weft remote list` shows where each remote is",
    Action.RECONSIDER_PENDING: "`weft pending list --decided` lists it, `weft pending undo` lets it wait again",
    Action.LIST_PENDING: "`weft pending` lists what waits",
    Action.LIST_REMOTES: "`weft remote list` lists them; `weft remote add` adds one",
    Action.LIST_SECRETS: "`weft secrets` lists them",
    Action.LIST_CREDENTIALS: ("`weft credential list` lists them; `weft credential add` adds one"),
    Action.LIST_ALL_PROBLEMS: "`weft verify` shows all of them",
    Action.FIND_REFUSED_REPLICA: "refusals of `weft pull` and `weft push` name the one they mean",
    Action.NAME_KEY: "give it one with --name",
    Action.CHOOSE_ANOTHER_KEY_NAME: "give it another --name",
    Action.CREATE_KEY: "make one with `weft key create`",
    Action.EXPORT_PUBLIC_KEY: "a public key is the one line that `weft key export` prints",
    # sessions and turns
    Action.COMPARE_BOTH: "`weft sessions` lists sessions, `weft log` lists turns; name others",
    Action.RESET_HEAD_ALONE: "`weft move {session} --reset` moves the head alone; files stay as they are",
    Action.CHECK_OUT_BESIDE: "`weft checkout {rev} --to DIR` brings the files to a folder beside it",
    Action.CREATE_SESSION: "`weft session create`",
    Action.UNDO_WITHOUT_FILES: "`weft undo {session} --files keep` takes the conversation back alone; files stay",
    Action.REDO_TURN: "all of it was undone: `weft undo {session} --redo` takes the last undo back",
    Action.RESUME_SESSION: "`weft session resume {session}` lets it go on",
    Action.RESTORE_SESSION: "`weft restore {session}` brings it back",
    Action.SET_SESSION_MODEL: (
        "`weft model create NAME --backend MODEL --provider PROVIDER` makes a model,"
        " `weft session configure {session} --model NAME` has it answer; or name one for this message: --model NAME"
    ),
    Action.SUMMARIZE_BRANCH: "bring a summary with `weft summarize`",
    Action.NAME_TURN_OF_THREAD: "name a turn of that thread: `weft log` shows it",
    Action.NAME_COMPACTION: "`weft log` marks compactions",
    Action.NAME_ONE_BRANCH: "name the turn with --to: {branches}",
    Action.CHOOSE_OWN_BRANCH: "say --ours",
    # erasing, bundles, exports
    Action.FINISH_ERASURE: "close what has it open, then `weft erase --finish`",
    Action.REVIEW_ERASURES: "`weft erase --pending`, then --apply",
    Action.WITHHOLD_MORE_OR_FORCE: "withhold those places too, or say --force",
    Action.CHOOSE_ANOTHER_FILE_OR_FORCE: "choose another file, or add --force to replace it",
    Action.MIGRATE_RESOURCE: (
        "`weft resource migrate {resource} --session {session}`, or let it work in another folder"
    ),
    # programs
    Action.PUBLISH_PROGRAM: "`weft program publish {program}` puts it in use",
    Action.VALIDATE_INFORMATION: "`weft info validate {program}` puts it in use",
    Action.TAKE_OVER_PROGRAM: (
        "look at it (`weft pending show {program}`), then `weft pending take {program}`, or configure it yourself"
    ),
    Action.SET_AS_OWNER: "the ledger's owner sets it with `weft program configure {program} --set {field}=VALUE`",
    Action.WAIT_OR_RESET_AGENT: "wait until it is idle, or `weft agent reset {agent}`",
    Action.WAIT_FOR_ANSWER_OR_RESET_AGENT: (
        "wait until it has answered; if nobody is at it any more, `weft agent reset {agent}`"
    ),
    Action.WAIT_OR_RESET_ABANDONED_AGENT: (
        "wait until it is done; if nobody is at it any more, `weft agent reset` lets it go"
    ),
    Action.RESUME_WORK: "`weft task run {task}` goes on with it",
    Action.RESUME_AGENT: "`weft agent resume {agent}` lets it go on",
    Action.RESET_AGENT: "`weft agent reset {agent}` lets it be idle again",
    Action.SET_AGENT_MODEL: (
        "`weft model create NAME --backend MODEL --provider PROVIDER` makes a model,"
        " `weft agent configure {agent} --model NAME` has it answer"
    ),
    Action.ASSIGN_TASK: "`weft task assign {task} NAME` first",
    Action.READ_REQUEST: "it is kept: `weft human requests {human}` shows it",
    Action.READ_REQUEST_AFTER: "{hint}; it is kept: `weft human requests {human}` shows it",
    Action.EMBED_NODE: "give it one: `weft embed {node}`",
    Action.FORGET_VECTORS: "forget them first: `weft embed --forget`",
    # the ledger's file or server
    Action.EXAMINE_LEDGER: "`weft doctor` explains what is wrong and what to do",
    Action.EXAMINE_FULLY: "`weft doctor --full`",
    Action.EXAMINE_OR_RECOVER: (
        "run `weft doctor`; `weft recover --from` restores a backup, `weft recover --salvage` saves what verifies"
    ),
    Action.RESTORE_OR_SALVAGE: (
        "put a backup in its place with `weft recover --from FILE`, "
        "or save what still verifies with `weft recover --salvage DAMAGED NEW`"
    ),
    Action.RESTORE_BACKUP: "put a backup in its place with `weft recover --from FILE`",
    Action.NAME_ANOTHER_OR_RESTORE: (
        "name another with --ledger, or put a backup in its place with `weft recover --from FILE`"
    ),
    Action.COPY_BACKUP: "copy a backup to a new ledger: `weft copy BACKUP ADDRESS`",
    Action.COPY_UNREADABLE_SERVER: (
        "salvaging is for files; a server restores what it was told to keep, and `weft copy` reads what can be read"
    ),
    Action.CHOOSE_NEW_FILE: "give the path of a new file; to another server or schema goes `weft copy`",
    Action.IMPORT_OR_CREATE_LEDGER: "`weft import` makes yours and brings in the sessions of other tools; "
    "`weft init` makes an empty one here",
    Action.CREATE_OR_NAME_LEDGER: "`weft init {path}` makes it, or name another with --ledger",
    Action.NAME_ANOTHER_LEDGER: "name another with --ledger",
    Action.UPGRADE_AFTER_BACKUP: "`weft backup` it, then open it for writing",
    Action.OPEN_TO_UPGRADE: "open it for writing, such as with `weft verify` after `weft rebuild`",
    Action.REPEAT_COPY: "run the same `weft copy` again; it goes on there",
    Action.IMPORT_MISSING_FACTS: "weft facts import, if another has them",
    Action.ACCEPT_LOSS: "put the newer copy back, or accept the loss with `weft recover --accept`",
    Action.REBUILD_VIEWS: "weft rebuild",
    Action.VERIFY_AND_REBUILD: "run `weft verify`, then `weft rebuild`",
    Action.VERIFY_REBUILD_EXAMINE: "run `weft verify`, then `weft rebuild`; if that does not mend it, `weft doctor`",
    Action.REPAIR_FACTS_THEN_REBUILD: "mend the facts first; if they verify, weft rebuild",
    Action.SCAN_SECRETS_AGAIN: "weft secrets --all",
    Action.IMPORT_AGAIN: "`weft import` reads them again",
    Action.IMPORT_REST: "`weft import PATH` brings in the sessions that are missing, where you have them",
    # other ledgers
    Action.RENEW_BOTH_REPLICAS: (
        "one of them is a copy made behind Weft's back: run `weft replica --new` in both, then sync again"
    ),
    Action.RENEW_COPY_REPLICA: (
        "one is a copy of the other, or they are one and the same; `weft replica --new` gives a copy another id"
    ),
    Action.REPIN_REMOTE: (
        "if another ledger is meant to be there now, `weft remote repin NAME` accepts it; nothing was taken or sent"
    ),
    Action.CHECK_OTHER_SHELL: (
        "is it `weft sync-stdio` of this version, and does the shell there print nothing of its own?"
    ),
    Action.TRUST_LEDGER: (
        "`weft --ledger {ledger} trust --show` lists what that would allow, `weft --ledger {ledger} trust` allows it"
    ),
    Action.CLONE_ELSEWHERE_OR_PULL: "clone to a new place, or `weft remote add` and pull",
    Action.CLONE_WITHOUT_SECRET: "sync without it: `weft clone --no-imports-secret`",
    # keys, servers and models
    Action.ALLOW_VARIABLE: "if that server may have it: `weft credential add NAME --env {variable} --origin {origin}`",
    Action.CHECK_CREDENTIAL: (
        "check the key itself and what it may be used for; `weft credential list` shows where it is read from"
    ),
}
"""What the command line says for the actions that are commands or options of it."""


def phrase(advice: Advice, sentences: Mapping[Action, str] = COMMAND_LINE) -> str:
    """Advice as one surface says it; a sentence for one case alone is shown as it is."""
    if advice.detail or advice.action not in sentences:
        return advice.hint
    prose_and_commands = sentences[advice.action].split("`")
    for place in range(1, len(prose_and_commands), 2):
        prose_and_commands[place] = prose_and_commands[place].format_map(_quoted_arguments(advice.arguments))
    for place in range(0, len(prose_and_commands), 2):
        prose_and_commands[place] = prose_and_commands[place].format_map(advice.arguments)
    return "`".join(prose_and_commands)


def _quoted_arguments(arguments: Mapping[str, str | int]) -> Mapping[str, str]:
    """The arguments as they stand in a command between backquotes: each of them one word of a shell."""
    return {name: str(value) if name in WHOLE_COMMANDS else shell_word(str(value)) for name, value in arguments.items()}


WHOLE_COMMANDS = frozenset({"command"})
"""Arguments that are a command of several words."""
