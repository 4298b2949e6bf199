#pragma once
#include "model/json_file.h"
