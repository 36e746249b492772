"""What the tables of every engine say first: the version, its libraries and variables."""

from __future__ import annotations

from quantplan.tables.overlay import CHANGE
from quantplan.tables.schema import Field, Row

HEAD: Row = {
    "engine": Field("text", "the engine's name"),
    "version": Field("text", "its version, quoted"),
    "default": Field("flag", "whether it is meant where no version is named; one table of each "
                     "engine has it", required=False),
    "extends": Field("text", "the version whose table this one changes; such a file has the "
                     "fields up to changes only", required=False),
    "released": Field("text", "date of the wheel's files, ISO"),
    "wheel": Field("row", "what was read", of={
        "file": Field("text", "file name of the wheel"),
        "sha256": Field("text", "its SHA-256"),
    }),
    "changes": Field("list", "what differs from the version that it extends, made in order; each "
                     "has one operation", required=False, of=CHANGE),
    "traits": Field("list", "behaviour that no other row says and that a Python rule reads", of={
        "id": Field("text", "its name"),
        "value": Field("any", "what this version does"),
        "means": Field("text", "what the value decides"),
        "source": Field("text", "engine file:symbol"),
    }),
    "libraries": Field("list", "optional libraries that selection asks for", of={
        "id": Field("text", "short name; the fact is lib.ID"),
        "default": Field("flag", "present and usable on a default install"),
        "package_of": Field("text", "the library whose mere package this is: it follows that one's "
                            "state, and --lib ID=installed sets it alone", required=False),
        "made_usable_by": Field("text", "the flag variable that makes an installed package usable",
                                required=False),
        "turned_off_by": Field("text", "the variable whose value, where it is false, makes the "
                               "engine do without the package", required=False),
        "means": Field("text", "what present means to the engine, and how to get it"),
        "source": Field("text", "engine file:symbol"),
    }),
    "environment": Field("list", "environment variables that selection reads", of={
        "id": Field("text", "the variable; the fact is env.ID"),
        "type": Field("text", "how it is read: flag is a whole number, word is true or 1 in any "
                      "case, switch is true, 1, yes, y or false, 0, no, n in any case, object is "
                      "JSON, json the same and the default where it is none, names a "
                      "comma-separated list",
                      choices=("flag", "word", "switch", "text", "names", "object", "json")),
        "variable": Field("text", "the variable, where the id is another reading of one",
                          required=False),
        "default": Field("scalar", "value when it is not set"),
        "otherwise": Field("scalar", "value of a switch that is set to no such word; the default "
                           "where this is absent", required=False),
        "not_known": Field("flag", "what another value than the default does is not in the table",
                           required=False),
        "choices": Field("list", "accepted values of a text variable", required=False,
                         of=Field("text", "a value")),
        "any_case": Field("flag", "whether the case of a choice does not matter", required=False),
        "changes": Field("text", "what it changes"),
        "source": Field("text", "engine file:symbol"),
    }),
}

MODEL_TYPES = Field("row", "model types that have a config class", of={
    "own": Field("list", "the engine's own", of=Field("text", "a model_type")),
    "own_source": Field("text", "engine file:symbol"),
    "transformers": Field("text", "the version of Transformers whose types it knows besides"),
})
