"""A checkpoint that can chat."""

import json
import shutil
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / 'model/testdata/chat_template_golden.json'


def copy_with_chat_template(checkpoint, folder):
    """The files of a tiny model in `folder`, with the chat template of the real one."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    template = json.loads(GOLDEN.read_text(encoding='utf-8'))['template']
    Path(folder, 'tokenizer_config.json').write_text(json.dumps({'chat_template': template}))
